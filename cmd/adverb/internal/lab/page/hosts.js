// A host: its QP's state, its queues, numbers, timers and memory.

import { $, el, fill, duration } from "./dom.js";
import { words, say } from "./words.js";

const states = ["RESET", "INIT", "RTR", "RTS", "SQD", "ERR"];

const seenMemory = new Map(); // by host and use: the content at the latest look

export function forgetMemory() { seenMemory.clear(); }

export function drawHost(i, host, view, explain) {
  const parts = [
    el("h3", {}, say(words.host, host), " ", el("small", {}, host.qpn ? say(words.qp, host) : `${host.addr} · ${words.noQP}`)),
    el("ol", { class: "states", "aria-label": "QP" }, ...states.map((s) => el("li", { class: stateClass(s, host), "aria-current": s === host.state ? "true" : undefined }, s))),
  ];
  if (host.cm) parts.push(el("p", { class: "faint" }, `CM: ${host.cm}`));
  parts.push(queue("sq", host.sends.map((w) => sendItem(w))));
  parts.push(queue("rq", host.receives.map((w) => el("li", { class: w.inUse ? "half" : "" }, say(w.inUse ? words.inUse : words.wqeRecv, w)))));
  parts.push(queue("cq", [...host.done.slice(-4).map((c) => cqeItem(c, true, explain)), ...host.cq.map((c) => cqeItem(c, false, explain))]));
  parts.push(numbers(host, view));
  if (host.regions.length) parts.push(el("div", { class: "memory" }, el("h4", {}, words.memory), ...host.regions.map((r) => region(host, r))));
  fill($(`host${i}`), ...parts);
}

function stateClass(s, host) {
  if (s !== host.state) return "";
  return s === "ERR" ? "on bad" : s === "RTS" ? "on good" : "on";
}

function queue(which, items) {
  return el("div", { class: `queue ${which}` }, el("h4", {}, words.queue[which]), el("ul", {}, ...(items.length ? items : [el("li", { class: "none" }, words.empty)])));
}

function sendItem(w) {
  const last = w.first + w.packets - 1;
  const bar = el("span", { class: "bar", title: say(words.sent, w) });
  for (let k = 0; k < Math.min(w.packets, 40); k++) {
    const at = (k * w.packets) / Math.min(w.packets, 40);
    bar.append(el("i", { class: at < w.acked ? "acked" : at < w.sent ? "sent" : "" }));
  }
  return el("li", { class: w.sent ? "half" : "" }, say(w.packets > 1 ? words.wqeSend : words.wqeSendOne, { ...w, op: w.op.replaceAll("_", " "), last }), bar, el("span", { class: "hide" }, say(words.sent, w)));
}

function cqeItem(c, polled, explain) {
  const text = say(words.cqe, { ...c, op: c.op.replaceAll("_", " "), name: c.name.replace(/^WC_/, "") });
  const kind = c.status === 0 ? "good" : "bad";
  const item = el("li", { class: `${kind}${polled ? " polled" : ""}` }, text);
  if (polled) item.append(" ", el("small", {}, words.polled));
  if (c.status !== 0) item.append(" ", el("button", { class: "small", title: c.cause, "aria-label": `explain status ${c.status}`, on: { click: () => explain(`status ${c.status}`, c.cause) } }, "?"));
  return item;
}

function numbers(host, view) {
  const p = host.psns, rows = [];
  const row = (name, value) => rows.push(el("dt", {}, name), el("dd", {}, String(value)));
  if (host.state && host.state !== "RESET" && host.state !== "INIT") {
    row(words.psn.expected, p.expected);
    row(words.psn.msn, p.msn);
    if (p.held.length) row(words.psn.held, say(words.psnList, { list: ranges(p.held) }));
    if (p.refused) row(words.psn.refused, "");
  }
  if (host.state === "RTS" || host.state === "ERR") {
    row(words.psn.next, p.next);
    row(words.psn.una, p.una);
    row(words.psn.window, say(words.packetsN, { n: p.window }));
    if (p.rtt) row(words.psn.rtt, duration(p.rtt));
    row(words.psn.retries, p.retries);
    row(words.psn.rnr, p.rnr === 7 ? `7 (${words.unlimited})` : p.rnr);
    if (p.credits >= 0) row(words.psn.credits, p.credits);
    if (host.flight.length) row(words.psn.flight, host.flight.map(flight).join("; "));
  }
  for (const t of host.timers) row(words.timer[t.name] ?? t.name, say(words.inTime, { time: duration(Math.max(0, t.at - view.now)) }));
  return el("details", { class: "numbers", open: openNumbers[host.name] ?? wide(), on: { toggle: (e) => { openNumbers[host.name] = e.target.open; } } },
    el("summary", {}, words.numbers), el("dl", {}, ...(rows.length ? rows : [el("dt", {}, words.empty)])));
}

const openNumbers = {};
const wide = () => matchMedia("(min-width: 60rem)").matches;

function flight(f) {
  const marks = [f.lost && words.lostMark, f.arrived && words.arrivedMark, f.repeated && words.againMark].filter(Boolean);
  const list = f.packets > 1 ? `${f.first}–${f.first + f.packets - 1}` : `${f.first}`;
  return say(words.psnList, { list }) + (marks.length ? ` (${marks.join(", ")})` : "");
}

// ranges writes PSNs as 3–5, 8.
export function ranges(list) {
  const out = [];
  for (let i = 0; i < list.length;) {
    let j = i;
    while (j + 1 < list.length && list[j + 1] === list[j] + 1) j++;
    out.push(i === j ? `${list[i]}` : `${list[i]}–${list[j]}`);
    i = j + 1;
  }
  return out.join(", ");
}

const dumpRows = 4, dumpBytes = 8;

function region(host, r) {
  const data = Uint8Array.from(atob(r.data), (c) => c.charCodeAt(0));
  const key = `${host.name} ${r.use}`, before = seenMemory.get(key) ?? data;
  seenMemory.set(key, data);
  let set = 0, first = -1;
  data.forEach((b, i) => { if (b) set++; if (first < 0 && b !== before[i]) first = i; });
  const use = words.use[r.use] ?? r.use;
  const canvas = el("canvas", { role: "img", "aria-label": say(words.regionAlt, { use, bytes: data.length, set }) });
  drawMemory(canvas, data, before);
  const from = first < 0 ? 0 : Math.min(first & ~(dumpBytes - 1), Math.max(0, (data.length - dumpBytes * dumpRows + dumpBytes - 1) & ~(dumpBytes - 1)));
  const more = data.length === 8 ? [el("p", { class: "faint" }, say(words.value, { value: new DataView(data.buffer).getBigUint64(0, true) }))] : [];
  return el("div", { class: "region" }, el("p", { class: "faint" }, say(words.region, { ...r, use, bytes: data.length })), canvas, el("pre", {}, dump(data, from)), ...more);
}

function drawMemory(canvas, data, before) {
  const columns = data.length > 2048 ? 128 : 64, rows = Math.max(1, Math.ceil(data.length / columns)), cell = columns === 128 ? 3 : 5;
  canvas.width = columns * cell;
  canvas.height = rows * cell;
  const style = getComputedStyle(document.documentElement), ink = canvas.getContext("2d");
  const color = { zero: style.getPropertyValue("--rule"), set: style.getPropertyValue("--data"), fresh: style.getPropertyValue("--wait") };
  data.forEach((b, i) => {
    ink.fillStyle = b !== before[i] ? color.fresh : b ? color.set : color.zero;
    ink.globalAlpha = b || b !== before[i] ? 0.45 + (b / 255) * 0.55 : 1;
    ink.fillRect((i % columns) * cell, Math.floor(i / columns) * cell, cell - 1, cell - 1);
  });
}

// dump writes bytes as hexadecimal and text.
export function dump(data, from = 0, rows = dumpRows, columns = dumpBytes) {
  const lines = [];
  for (let at = from; at < data.length && lines.length < rows; at += columns) {
    const row = [...data.subarray(at, at + columns)];
    const hex = row.map((b) => b.toString(16).padStart(2, "0")).join(" ").padEnd(3 * columns - 1);
    lines.push(`${at.toString(16).padStart(4, "0")}  ${hex}  ${row.map((b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : "·")).join("")}`);
  }
  return lines.join("\n");
}
