// The page: it shows what the engine says, and hands decisions to it. The URL's fragment is the play.

import { $, el, fill, duration } from "./dom.js";
import { words, speak, say, languages, languageNames } from "./words.js";
import { load } from "./engine.js";
import { drawHost, forgetMemory } from "./hosts.js";
import { actions, drawWire, moveWire, drawPackets, drawDetail } from "./packets.js";
import { tell, isTrouble } from "./journal.js";

let engine, view, lessons = [], chosen = 0, timer = 0, shown = 0, version = "";

// address is what the URL's fragment says of a play: the engine's version too, since another one may play it differently.
const address = (v) => (version ? `${v.link}&v=${version}` : v.link);

const still = matchMedia("(prefers-reduced-motion: reduce)");

// attempt does something, and shows why it failed.
function attempt(f) {
  try {
    $("problem").hidden = true;
    return f();
  } catch (e) {
    $("problem").textContent = e.message;
    $("problem").hidden = false;
    pause();
    return undefined;
  }
}

const packet = (n) => view.packets.find((p) => p.n === n);

// show draws a view. The packets move there from where they were, unless the play began anew.
function show(next, anew = false) {
  if (!next) return;
  if (anew) { forgetMemory(); shown = next.now; }
  const changedLesson = !view || view.settings.lesson !== next.settings.lesson;
  view = next;
  if (chosen && !packet(chosen)) chosen = 0;
  history.replaceState(null, "", `#${address(view)}`);
  if (changedLesson) drawLesson();
  if (changedLesson || anew) drawSettings();
  draw();
  glide();
}

function draw() {
  view.hosts.forEach((h, i) => drawHost(i, h, view, explain));
  drawWire(view, shown, chosen, choose);
  drawPackets(view, chosen, choose);
  drawDetail(chosen ? { ...engine.packet(chosen) } : null, view, act);
  drawPosts();
  const told = tell(view.log, packet);
  fill($("said"), ...(told.length ? told.map((t) => el("li", { class: t.bad ? "bad" : "" }, t.text)) : [el("li", { class: "faint" }, words.begin)]));
  $("clock").textContent = say(words.clock, { step: view.step, time: duration(view.now) });
  $("back").disabled = view.link === startLink();
  for (const id of ["step", "run", "play"]) $(id).disabled = view.over;
  if ($("journal").open) drawJournal();
}

// startLink is the play before its first step and decision.
const startLink = () => view.link.replace(/&d=[^&]*/, "").replace(/&at=\d+/, "");

// glide moves the packets on the wire to the present.
let gliding = 0;
function glide() {
  cancelAnimationFrame(gliding);
  const from = shown, to = view.now, begun = performance.now();
  const frame = (t) => {
    const part = still.matches ? 1 : Math.min(1, (t - begun) / 280);
    shown = from + (to - from) * part;
    moveWire(view, shown);
    if (part < 1) gliding = requestAnimationFrame(frame);
  };
  gliding = requestAnimationFrame(frame);
}

function drawLesson() {
  const lesson = words.lessons[view.settings.lesson];
  $("lesson").value = view.settings.lesson;
  $("title").textContent = lesson.title;
  document.title = `${lesson.title} · adverb lab`;
  fill($("text"), ...lesson.text.map((t) => el("p", {}, t)));
  fill($("tries"), ...lesson.tries.map(([label, link]) => el("button", { class: "try", on: { click: () => begin(link) } }, label)));
}

function drawPosts() {
  const list = ["s", "w", "r", "f", "v", "k"];
  const had = document.activeElement?.dataset?.post;
  fill($("postButtons"), ...list.map((a) => el("button", { "data-post": a, on: { click: () => act(a, 0) } }, words.post[a === "k" && view.cut ? "K" : a])));
  if (had) $("postButtons").querySelector(`[data-post="${had}"]`)?.focus();
}

function drawJournal() {
  const all = engine.log();
  const known = new Map(); // packets that the view has forgotten
  const find = (n) => {
    if (!n) return undefined;
    if (!known.has(n)) known.set(n, packet(n) ?? engine.packet(n));
    return known.get(n);
  };
  fill($("all"), ...tell(all.slice(-2000), find).map((t) => el("li", { class: t.bad ? "bad" : "" }, el("small", {}, `${t.step} · ${duration(t.at)} `), t.text)));
}

const mtus = [256, 512, 1024, 2048, 4096];

function drawSettings() {
  const usual = lessons.find((s) => s.lesson === view.settings.lesson);
  const fields = Object.entries(words.setting).map(([key, [name, help]]) => {
    const value = view.settings[key], id = `set-${key}`;
    const choices = key === "mtu" ? mtus.map((m) => [m, m]) : words.choice[key]?.map((text, i) => [i, text]);
    const input = choices
      ? el("select", { id, name: key }, ...choices.map(([v, text]) => el("option", { value: String(v), selected: v === value }, String(text))))
      : el("input", { id, name: key, type: "number", min: "0", value: String(value), required: true });
    return el("p", { class: value === usual[key] ? "" : "changed" }, el("label", { for: id }, name), input, el("small", {}, help));
  });
  fill($("form"), ...fields, el("p", { class: "end" }, el("button", { type: "submit", class: "first" }, words.apply), el("button", { type: "button", on: { click: () => begin(`l=${view.settings.lesson}`) } }, words.usual)));
}

// settingsLink is the play that the form describes.
function settingsLink() {
  const parts = [`l=${view.settings.lesson}`];
  for (const [key, value] of new FormData($("form"))) parts.push(`${key === "seed" ? "s" : key}=${value}`);
  return parts.join("&");
}

function begin(link) {
  pause();
  chosen = 0;
  attempt(() => show(engine.play(link), true));
  sayOther(new URLSearchParams(link).get("v"));
}

// sayOther says that a link was made with an engine of another version, or takes that back.
let other = "";
function sayOther(by) {
  other = by;
  const differs = by && version && by !== version;
  $("other").hidden = !differs;
  if (differs) $("other").textContent = say(words.other, { by, version });
}

function step() { attempt(() => show(engine.step())); }

function back() {
  pause();
  attempt(() => show(engine.undo(), true));
}

function play() {
  if (timer) { pause(); return; }
  $("play").textContent = words.pause;
  const tick = () => {
    step();
    if (view.over || !$("problem").hidden) pause();
    else timer = setTimeout(tick, 900);
  };
  timer = setTimeout(tick, 0);
}

function pause() {
  clearTimeout(timer);
  timer = 0;
  $("play").textContent = words.play;
}

const ends = {
  cqe: (e) => e.kind === "cqe", trouble: (e) => isTrouble(e, packet), program: (e) => ["post", "receive", "poll"].includes(e.kind),
  timer: (e) => e.kind === "count" && /probe|timeout|retrans/.test(e.text), end: () => false,
};
const mostSteps = 1000, mostTime = 1500; // ms; a peer may wait for a receive without end // a peer may wait for a receive without end

function run() {
  pause();
  const stop = ends[$("until").value];
  attempt(() => {
    let next;
    const begun = performance.now();
    for (let n = 0; n < mostSteps && performance.now() - begun < mostTime; n++) {
      next = engine.step();
      view = next;
      if (next.over || next.log.some(stop)) break;
    }
    show(next);
  });
}

function choose(n) {
  chosen = chosen === n ? 0 : n;
  draw();
}

function chooseNext(by) {
  if (!view.packets.length) return;
  const at = view.packets.findIndex((p) => p.n === chosen);
  const flying = view.packets.findIndex((p) => p.fate === "flying");
  const next = at < 0 ? (flying >= 0 ? flying : view.packets.length - 1) : Math.min(view.packets.length - 1, Math.max(0, at + by));
  chosen = view.packets[next].n;
  draw();
  document.querySelector(`#packets [data-n="${chosen}"]`)?.scrollIntoView({ block: "nearest" });
}

function act(action, n = chosen) {
  pause();
  attempt(() => show(engine.decide(action, n)));
}

function openDialog(title, ...content) {
  $("dialogTitle").textContent = title;
  fill($("dialogText"), ...content);
  $("dialog").showModal();
}

// explain shows what adverb explain says.
function explain(about, cause) {
  const [e] = attempt(() => engine.explain(about)) ?? [];
  if (!e) return;
  const list = (items) => (items?.length ? el("ul", {}, ...items.map((t) => el("li", {}, t))) : null);
  openDialog(e.name, ...[el("p", {}, e.brief), e.more && el("p", {}, e.more), cause && el("p", {}, el("code", {}, cause)), list(e.causes), list(e.checks)].filter(Boolean));
}

function help() {
  openDialog(words.keysTitle, el("dl", { class: "keys" }, ...words.keys.flatMap(([k, t]) => [el("dt", {}, el("kbd", {}, k)), el("dd", {}, t)])));
}

const keys = { s: () => !view.over && step(), u: () => !$("back").disabled && back(), p: () => !view.over && play(), e: () => !view.over && run(), r: () => begin(startLink()), j: () => chooseNext(1), k: () => chooseNext(-1), "?": help };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !view || $("dialog").open || event.target.matches("input, select, textarea")) return;
  const f = keys[event.key] ?? (actions.includes(event.key) && chosen ? () => act(event.key) : null);
  if (!f) return;
  event.preventDefault();
  f();
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  draw(); // the memory is painted in the theme's colours
}

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    $("copy").textContent = words.copied;
    setTimeout(() => { $("copy").textContent = words.copy; }, 1500);
  } catch {
    openDialog(words.copy, el("p", {}, el("code", {}, location.href)));
  }
}

function wire() {
  for (const [id, f] of Object.entries({ step, back, play, run, restart: () => begin(startLink()), help, theme: toggleTheme, copy: copyLink })) $(id).addEventListener("click", f);
  $("lesson").addEventListener("change", (e) => begin(`l=${e.target.value}`));
  $("form").addEventListener("submit", (e) => { e.preventDefault(); begin(settingsLink()); });
  $("journal").addEventListener("toggle", () => $("journal").open && drawJournal());
  addEventListener("keydown", onKey);
  addEventListener("hashchange", () => view && location.hash.slice(1) !== address(view) && begin(location.hash.slice(1)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view && draw());
}

// label writes the words that do not change with the play.
function label() {
  for (const e of document.querySelectorAll("[data-word]")) e.textContent = words[e.dataset.word];
  const until = $("until").value;
  fill($("until"), ...Object.entries(words.until).map(([value, text]) => el("option", { value, selected: value === until }, text)));
  $("until").setAttribute("aria-label", words.run);
  fill($("lesson"), ...lessons.map((s) => el("option", { value: s.lesson }, words.lessons[s.lesson].title)));
}

// translate shows the play in another language.
function translate(code) {
  pause();
  speak(code);
  label();
  history.replaceState(null, "", `?lang=${code}${location.hash}`);
  if (!view) return;
  drawLesson();
  drawSettings();
  sayOther(other);
  draw();
}

async function start() {
  $("main").hidden = document.querySelector("header").hidden = false;
  const usual = navigator.language.startsWith("zh") ? "zh" : "en";
  speak(new URLSearchParams(location.search).get("lang") ?? usual);
  $("language").addEventListener("change", (e) => translate(e.target.value));
  for (const code of Object.keys(languages)) $("language").append(el("option", { value: code, selected: code === document.documentElement.lang }, languageNames[code]));
  label();
  $("title").textContent = words.loading;
  engine = await load();
  lessons = engine.lessons();
  label();
  wire();
  version = engine.version();
  begin(location.hash.slice(1));
  if (!view) { // a bad link: its error is shown until something is done
    show(engine.play(""), true);
    $("problem").hidden = false;
  }
  $("main").removeAttribute("aria-busy");
}

start().catch((e) => {
  $("problem").textContent = e.message;
  $("problem").hidden = false;
});
