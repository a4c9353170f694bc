// The search, and little else: pages are read without it. The index is search-index.js, which is loaded when somebody begins to search, from a server or a file.
// The other half is index.go.
(() => {
'use strict';
const form = document.querySelector('.search');
const input = form.querySelector('input');
const list = document.getElementById('site-results');
const count = document.getElementById('site-count');
const root = document.body.dataset.root;
const most = 30; // results
let sought = null; // the index as it is searched, once it is there
let chosen = -1; // the result that Enter takes

form.hidden = false;

// load loads the index, once.
let loading = null;
function load() {
  return loading ??= new Promise((resolve, reject) => {
    const script = document.createElement('script');
    script.src = root + 'search-index.js';
    script.onload = () => { sought = unpack(window.adverbIndex); resolve(); };
    script.onerror = () => { loading = null; reject(new Error('the index of the search is missing')); };
    document.head.append(script);
  });
}

function unpack(index) {
  const lines = index.words.trimEnd().split('\n');
  return {pages: index.pages, sections: index.sections, words: lines.map(line => line.split('\t'))};
}

// tokens takes a query apart as tokens of index.go does a text, but for parts of words.
function tokens(text) {
  const found = [];
  for (const run of text.toLowerCase().match(/\p{Script=Han}+|[\p{L}\p{Nd}_]+/gu) ?? []) {
    for (const part of run.match(/\p{Script=Han}+|[^\p{Script=Han}]+/gu)) {
      if (!/\p{Script=Han}/u.test(part)) {
        const word = part.replace(/^_+|_+$/g, '');
        if (word) found.push(word);
        continue;
      }
      const chars = [...part];
      if (chars.length === 1) found.push(part);
      for (let i = 0; i + 1 < chars.length; i++) found.push(chars[i] + chars[i + 1]);
    }
  }
  return found;
}

// beginning is the number of the first word that is not before text.
function beginning(words, text) {
  let low = 0, high = words.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (less(words[middle][0], text)) low = middle + 1; else high = middle;
  }
  return low;
}

// less compares as Go does, by code points. Those of the words are below U+10000, but for rare characters.
const less = (a, b) => a < b;

// having returns the sections that have a word, or one that begins so, with their weights.
function having(text) {
  const scores = new Map();
  for (let i = beginning(sought.words, text); i < sought.words.length && sought.words[i][0].startsWith(text); i++) {
    const [word, where] = sought.words[i];
    const whole = word === text ? 4 : 1;
    let n = 0;
    for (const [, step, weight] of where.matchAll(/([0-9a-z]+)([A-C])/g)) {
      n += parseInt(step, 36);
      const score = whole * {A: 1, B: 5, C: 9}[weight];
      scores.set(n, Math.max(scores.get(n) ?? 0, score));
    }
  }
  return scores;
}

// find returns the sections that have all words, the best first. Between equals the order of the contents decides.
function find(query) {
  let all = null;
  for (const word of tokens(query)) {
    const scores = having(word);
    if (!all) { all = scores; continue; }
    all = new Map([...all].filter(([n]) => scores.has(n)).map(([n, score]) => [n, score + scores.get(n)]));
  }
  return [...all ?? []].sort((a, b) => b[1] - a[1] || a[0] - b[0]).map(([n]) => n);
}

function show() {
  const query = input.value.trim();
  list.replaceChildren();
  choose(-1);
  if (!query || !sought) { open(false); count.textContent = ''; return; }
  const found = find(query);
  for (const n of found.slice(0, most)) {
    const [page, anchor, heading, text] = sought.sections[n];
    const [address, title, lang] = sought.pages[page];
    const item = document.createElement('li');
    item.setAttribute('role', 'option');
    item.id = 'result-' + list.children.length;
    if (lang !== document.documentElement.lang) item.lang = lang;
    const a = document.createElement('a');
    a.href = root + address + (anchor ? '#' + anchor : '');
    a.tabIndex = -1;
    const name = document.createElement('b');
    name.textContent = heading;
    a.append(name);
    if (anchor) a.append(' – ' + title);
    const words = document.createElement('span');
    words.textContent = text;
    a.append(words);
    item.append(a);
    list.append(item);
  }
  count.textContent = found.length === 1 ? '1 result' : found.length + ' results';
  if (found.length === 0) {
    const none = document.createElement('li');
    none.className = 'none';
    none.textContent = 'Nothing has all of these words.';
    list.append(none);
  }
  open(true);
}

function open(yes) {
  list.hidden = !yes;
  input.setAttribute('aria-expanded', yes);
}

function choose(n) {
  list.children[chosen]?.removeAttribute('aria-selected');
  chosen = n;
  const item = list.children[n];
  item?.setAttribute('aria-selected', 'true');
  item?.scrollIntoView({block: 'nearest'});
  if (item) input.setAttribute('aria-activedescendant', item.id); else input.removeAttribute('aria-activedescendant');
}

async function search() {
  try {
    await load();
    show();
  } catch (err) {
    list.replaceChildren(err.message);
    open(true);
  }
}

input.addEventListener('focus', () => { load().catch(() => {}); });
input.addEventListener('input', search);
input.addEventListener('keydown', event => {
  const n = list.querySelectorAll('a').length;
  switch (event.key) {
  case 'ArrowDown': if (n) choose((chosen + 1) % n); break;
  case 'ArrowUp': if (n) choose(chosen < 0 ? n - 1 : chosen - 1); break;
  case 'Escape': open(false); input.blur(); return;
  default: return;
  }
  event.preventDefault();
});
form.addEventListener('submit', event => {
  event.preventDefault();
  list.querySelectorAll('a')[Math.max(chosen, 0)]?.click();
});
list.addEventListener('click', event => { if (event.target.closest('a')) open(false); });
document.addEventListener('click', event => { if (!form.contains(event.target)) open(false); });
document.addEventListener('keydown', event => {
  const writes = event.target.closest?.('input, textarea, select, [contenteditable]');
  if (event.key === '/' && !writes && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    requestAnimationFrame(() => input.focus()); // once the key is done with
  }
});

// The lab needs a server. From a file its link leads to the command, which is one.
const lab = document.querySelector('.to-lab');
if (lab && location.protocol === 'file:') lab.href = root + 'commands/lab.html';

// The contents show the page's own entry.
const contents = document.getElementById('site-contents');
const here = contents.querySelector('[aria-current]');
if (here) contents.scrollTop = here.getBoundingClientRect().top - contents.getBoundingClientRect().top - contents.clientHeight / 2;
})();
