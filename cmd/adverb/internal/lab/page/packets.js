// The link: packets under way, all packets in their order, and one packet's bits.

import { $, el, fill, duration } from "./dom.js";
import { words, say } from "./words.js";
import { dump } from "./hosts.js";

export const actions = ["x", "l", "b", "c", "n"];

const short = (name) => name.replace("RDMA_", "").replace("ACKNOWLEDGE", "ACK").replace("ADVERB ", "").replaceAll("_", " ");

export const longName = (p) => p.name.replaceAll("_", " ");

// badge is the shortest name of a packet: what it is, and its PSN.
const badge = (p) => `${p.kind === "trouble" ? "NAK" : p.kind === "answer" && p.name === "ACKNOWLEDGE" ? "ACK" : p.kind === "manage" ? p.name.replace("CM ", "") : ""} ${p.psn}`.trim();

const marks = (p) => [p.again && words.againMark, p.copyOf && say(words.copyMark, { n: p.copyOf }), p.delayed && words.delayedMark, p.damaged && words.damagedMark].filter(Boolean);

const laneRows = [1, 2, 0, 3]; // packets under way take turns, so that few cover others

let nodes = new Map(); // the buttons on the wire, by the number of the packet

// drawWire puts the packets that are under way onto the wire, as they are at a time.
export function drawWire(view, at, chosen, choose) {
  const next = new Map(), counts = { A: 0, B: 0 };
  for (const p of view.packets) {
    if (p.fate !== "flying") continue;
    const row = laneRows[counts[p.from]++ % laneRows.length];
    let b = nodes.get(p.n);
    if (!b) {
      b = el("button", { "data-n": String(p.n), on: { click: () => choose(p.n) } });
      $(p.from === "A" ? "lane0" : "lane1").append(b);
    }
    b.className = `packet ${p.kind}${p.n === chosen ? " chosen" : ""}${p.damaged ? " damaged" : ""}${p.again ? " again" : ""}`;
    b.textContent = badge(p);
    b.title = say(words.row, { ...p, name: longName(p), fate: words.fate[p.fate] });
    b.setAttribute("aria-label", b.title);
    b.setAttribute("aria-pressed", String(p.n === chosen));
    b.style.top = `${row * 100 / laneRows.length}%`;
    b.style.zIndex = String(1000 - (counts[p.from] % 1000)); // those that wait at the end lie behind
    place(b, p, at);
    next.set(p.n, b);
  }
  for (const [n, b] of nodes) if (!next.has(n)) b.remove();
  nodes = next;
  $("wire").classList.toggle("cut", view.cut);
  $("hint").textContent = view.cut ? words.cut : next.size ? words.hint : words.idle;
}

// moveWire moves the packets to where they are at a time.
export function moveWire(view, at) {
  for (const p of view.packets) {
    const b = nodes.get(p.n);
    if (b) place(b, p, at);
  }
}

function place(b, p, at) {
  const part = Math.min(1, Math.max(0, (at - p.sent) / Math.max(1, p.due - p.sent)));
  b.style.left = `${(p.from === "A" ? part : 1 - part) * 100}%`;
}

export function drawPackets(view, chosen, choose) {
  const rows = view.packets.map((p) => el("li", {}, el("button", {
    class: `row ${p.kind} ${p.fate}${p.from === "A" ? "" : " left"}`, "data-n": String(p.n), "aria-pressed": String(p.n === chosen),
    "aria-label": say(words.row, { ...p, name: longName(p), fate: words.fate[p.fate] }), on: { click: () => choose(p.n) },
  }, el("span", { class: "n" }, String(p.n)), el("span", { class: "what" }, short(p.name), el("b", {}, ` ${p.psn}`), p.bytes ? el("small", {}, ` ${say(words.payload, p)}`) : null,
    ...marks(p).map((m) => el("em", {}, ` ${m}`))), el("span", { class: "arrow", "aria-hidden": "true" }), el("span", { class: "fate" }, words.fate[p.fate]))));
  if (view.earlier) rows.unshift(el("li", { class: "faint" }, say(words.earlier, { n: view.earlier })));
  const list = $("packets"), atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  const had = document.activeElement?.closest?.("#packets button")?.dataset.n;
  fill(list, ...rows);
  if (atEnd) list.scrollTop = list.scrollHeight;
  if (had) list.querySelector(`[data-n="${had}"]`)?.focus({ preventScroll: true });
}

export function drawDetail(p, view, act) {
  $("detail").hidden = $("actions").hidden = !p;
  if (!p) return;
  $("detailTitle").textContent = say(words.packetTitle, { ...p, name: longName(p) });
  const state = p.fate === "flying" ? say(words.arrives, { time: duration(Math.max(0, p.due - view.now)) }) : words.fate[p.fate];
  $("brief").textContent = [p.brief, p.what, state, ...marks(p)].filter(Boolean).join(" · ");
  fill($("actions"), ...(p.fate === "flying"
    ? [el("span", {}, `${say(words.packet, p)}:`), ...actions.map((a) => el("button", { "data-action": a, "aria-keyshortcuts": a, on: { click: () => act(a) } }, words.action[a]))]
    : [el("p", { class: "faint" }, words.noAction)]));
  fill($("headers"), ...p.headers.map(header));
  $("hex").textContent = dump(Uint8Array.from(p.hex.match(/../g) ?? [], (h) => parseInt(h, 16)), 0, 1000, 16);
}

const rowBits = 32, mostBits = 4 * rowBits;

// header draws the fields as rows of 32 bits. A field may go on in the next row.
function header(h) {
  const grid = el("div", { class: "bits", role: "list" });
  for (const f of h.fields) {
    const bits = f.bits > mostBits ? rowBits - (f.bit % rowBits) : f.bits; // all bytes stand below
    for (let bit = f.bit, left = bits, first = true; left > 0; first = false) {
      const n = Math.min(left, rowBits - (bit % rowBits));
      const text = first ? [el("span", {}, f.name), el("b", {}, f.text || f.value)] : [el("span", {}, "…")];
      const cell = el("div", { class: "field", role: first ? "listitem" : "presentation", title: `${f.name}: ${f.value}${f.text ? ` (${f.text})` : ""}, ${f.bits} bit` }, ...text);
      cell.style.gridColumn = `span ${n}`;
      if (n < 4) cell.classList.add("thin");
      grid.append(cell);
      bit += n;
      left -= n;
    }
  }
  return el("div", { class: "header" }, el("h4", {}, say(words.header, h)), h.brief ? el("p", { class: "faint" }, h.brief) : null, h.fields.length ? grid : null);
}
