// What has happened, in words.

import { words, say } from "./words.js";
import { longName } from "./packets.js";

// tell turns entries of the log into sentences. packet finds a packet by its number.
export function tell(entries, packet) {
  const out = [];
  for (let i = 0; i < entries.length; i++) {
    const e = entries[i];
    let j = i;
    if (e.kind === "sent") {
      while (j + 1 < entries.length && entries[j + 1].kind === "sent" && entries[j + 1].who === e.who && entries[j + 1].step === e.step) j++;
    }
    out.push({ step: e.step, at: e.at, bad: isTrouble(e, packet), text: j > i ? many(e, entries[j], packet) : one(e, packet) });
    i = j;
  }
  return out;
}

const named = (p) => (p ? { name: longName(p), psn: p.psn } : {});

function many(first, last, packet) {
  const p = packet(first.packet), q = packet(last.packet);
  return say(words.did.sentMany, { who: first.who, first: first.packet, last: last.packet, ...named(p), lastName: q && longName(q), lastPSN: q?.psn });
}

function one(e, packet) {
  const values = { ...e, id: e.id ?? 0, bytes: e.bytes ?? 0, op: e.op?.replaceAll("_", " "), ...named(packet(e.packet)) };
  switch (e.kind) {
    case "count": return say(words.counter[e.text] ?? words.did.count, values);
    case "cqe": return say(e.status ? words.did.cqeBad : words.did.cqe, values);
    case "cut": return e.on ? words.did.cutOn : words.did.cutOff;
    case "cm": return say(words.did.cm, { ...values, text: words.event[e.text] ?? e.text });
    case "memory": return say(words.did.memory, { ...values, from: e.from ?? 0, to: (e.from ?? 0) + e.bytes - 1, use: words.use[e.text] ?? e.text });
    default: return say(words.did[e.kind] ?? e.kind, values);
  }
}

const badCounters = /err|out_of_seq|icrc|unexpected|rnr|drop/;

export function isTrouble(e, packet) {
  return e.kind === "lost" || e.kind === "error" || e.kind === "drop" || e.kind === "damage" || (e.kind === "cqe" && e.status > 0) ||
    (e.kind === "state" && e.text === "ERR") || (e.kind === "count" && badCounters.test(e.text)) || (e.kind === "sent" && packet(e.packet)?.kind === "trouble");
}
