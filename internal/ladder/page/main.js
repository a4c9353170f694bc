// main: the state of the page, its keys and its print.

const keys = [
	['↓ ↑ or j k', 'the next or previous packet'],
	['Page Down, Page Up', 'a page on or back'],
	['Home, End', 'the first or last packet'],
	['n, N', 'the next or previous mark'],
	['/', 'search; Enter and Shift+Enter go from match to match'],
	['f', 'filter'],
	['m', 'marked packets only, or all'],
	['+, −, 0', 'zoom in, out, and back; Ctrl with the wheel too'],
	['t', 'rows by time, or one a packet'],
	['1 to 5', 'the panels'],
	['s', 'hide or show the panels'],
	['d', 'light or dark'],
	['?', 'this list'],
	['Esc', 'leave a field; forget the choice'],
];

const mostPrinted = 400; // rows
const mostChoices = 2000; // QPs or ends to choose from
const atOnce = 20000;     // packets that are searched while somebody types
const aroundOption = 3;  // packets before and behind the selected one that are in the list for screen readers

// start opens the page, or says why it cannot.
function start() {
	open().catch((e) => {
		document.getElementById('summary').textContent = 'This page is damaged: ' + e.message;
		throw e;
	});
}

// open reads the data of the page.
async function open() {
	const begun = performance.now();
	const head = JSON.parse(document.getElementById('head').textContent);
	const columns = document.getElementById('columns');
	const bytes = await unpack(columns.textContent);
	columns.remove();
	const page = new Page(head, decode(head, bytes));
	page.opened = performance.now() - begun;
	window.ladderPage = page; // for tests, and for the curious
}

class Page {
	constructor(head, packets) {
		for (const id of ['charts', 'heads', 'scroller', 'tall', 'ladder', 'options', 'byQP', 'byEnd', 'byOpcode', 'markedOnly', 'search', 'found', 'scale', 'announce', 'help', 'print', 'summary', 'side']) {
			this[id] = document.getElementById(id);
		}
		this.model = new Model(head, packets);
		this.memory = new Memory(this.model);
		this.picture = new Ladder(this.model);
		this.panels = new Panels(this.model, this.memory, (i) => this.goTo(i));
		this.overview = new Charts(this.charts, this.model, (time) => this.goToTime(time));
		this.selected = -1; // a packet
		this.matches = [];  // places in the view
		this.fill();
		this.listen();
		this.filter();
		this.panels.open(head.findings.length ? 1 : 0);
		const frame = /^#frame=(\d+)$/.exec(location.hash);
		if (frame) this.goTo(packets.frame.indexOf(Number(frame[1])));
	}

	// fill fills the choices and the summary.
	fill() {
		const {head, p} = this.model;
		const option = (value, text) => el('option', {value}, text);
		const qps = [...new Map(head.streams.map((s) => [s.qpn, s.label || hex(s.qpn, 6)]))].sort((a, b) => a[0] - b[0]);
		const most = (list) => list.slice(0, mostChoices);
		this.byQP.append(option('', 'all'), ...most(qps).map(([qpn, name]) => option(qpn, name)));
		this.byEnd.append(option('', 'all'), ...most(head.ends).map((e, i) => option(i, e.letter + '  ' + e.name)));
		const names = head.opcodes.map((o, i) => [o.name, i]).sort((a, b) => a[0] < b[0] ? -1 : 1);
		this.byOpcode.append(option('', 'all'), ...names.map(([name, i]) => option(i, name)));
		const duration = p.n ? p.time[p.n - 1] - p.time[0] : 0;
		let events = 0;
		for (let i = 0; i < p.n; i++) if (this.model.isEvent(i)) events++;
		this.summary.textContent = count(p.n - events, 'packet') + (events ? ' and ' + count(events, 'record') + ' of the devices' : '') +
			' between ' + count(head.ends.length, 'end') + ' in ' + span(duration);
		this.help.append(el('h2', {id: 'helpTitle'}, 'Keys'), el('dl', null, ...keys.flatMap(([k, what]) => [el('dt', null, k), el('dd', null, what)])),
			el('form', {method: 'dialog'}, el('button', null, 'Close')));
	}

	listen() {
		for (const c of [this.byQP, this.byEnd, this.byOpcode, this.markedOnly]) c.addEventListener('change', () => this.filter());
		this.search.addEventListener('input', () => {
			clearTimeout(this.typing);
			this.typing = null;
			if (this.view.length <= atOnce) this.find(); else this.typing = setTimeout(() => this.find(), 300);
		});
		this.search.addEventListener('keydown', (e) => {
			if (e.key !== 'Enter') return;
			if (this.typing) this.find();
			this.match(e.shiftKey ? -1 : 1);
		});
		document.getElementById('tools').addEventListener('submit', (e) => e.preventDefault());
		const click = (id, f) => document.getElementById(id).addEventListener('click', f);
		click('next', () => this.match(1));
		click('previous', () => this.match(-1));
		click('zoomIn', () => this.zoom(1.5));
		click('zoomOut', () => this.zoom(1 / 1.5));
		click('themeButton', () => this.theme());
		click('helpButton', () => this.help.showModal());
		this.scale.addEventListener('change', () => this.setScale(this.scale.value));
		this.scroller.addEventListener('scroll', () => this.later());
		this.scroller.addEventListener('wheel', (e) => {
			if (!e.ctrlKey) return;
			e.preventDefault();
			this.zoom(e.deltaY < 0 ? 1.25 : 0.8, e.clientY - this.scroller.getBoundingClientRect().top);
		}, {passive: false});
		this.ladder.addEventListener('click', (e) => {
			const k = this.picture.near(this.scroller.scrollTop + e.offsetY);
			if (k >= 0) this.select(this.view[k]);
		});
		document.addEventListener('keydown', (e) => this.key(e));
		new ResizeObserver(() => this.later()).observe(this.scroller);
		matchMedia('(prefers-color-scheme:dark)').addEventListener('change', () => this.recolor());
		addEventListener('beforeprint', () => this.writePrint());
		matchMedia('print').addEventListener('change', (e) => { if (e.matches) this.writePrint(); });
	}

	// filter takes the packets that the choices allow.
	filter() {
		const number = (c) => c.value === '' ? null : Number(c.value);
		this.view = this.model.select({qp: number(this.byQP), end: number(this.byEnd), opcode: number(this.byOpcode), marked: this.markedOnly.checked});
		this.picture.show(this.view);
		this.overview.show(this.view);
		if (this.selected >= 0 && this.at(this.selected) < 0) this.select(-1);
		this.find();
		this.resize();
		this.announce.textContent = count(this.view.length, 'packet') + ' shown';
	}

	// at returns the place of a packet in the view, or -1.
	at(i) {
		let low = 0, high = this.view.length;
		while (low < high) {
			const mid = low + high >> 1;
			if (this.view[mid] < i) low = mid + 1; else high = mid;
		}
		return this.view[low] === i ? low : -1;
	}

	find() {
		clearTimeout(this.typing);
		this.typing = null;
		this.matches = this.model.search(this.view, this.search.value);
		this.matchSet = new Set(this.matches);
		const n = this.matches.length;
		this.found.textContent = !this.search.value.trim() ? '' : n ? count(n, 'match').replace('matchs', 'matches') : 'no match';
		this.later();
	}

	// match goes to the next match, or to the one before.
	match(step) { this.jump(this.matches, step); }

	// jump goes to the next of some places in the view, and round at the end.
	jump(list, step) {
		if (!list.length) return;
		const at = this.selected < 0 ? -1 : this.at(this.selected);
		const next = step > 0 ? list.find((k) => k > at) : list.findLast((k) => k < (at < 0 ? Infinity : at));
		this.goTo(this.view[next !== undefined ? next : step > 0 ? list[0] : list[list.length - 1]]);
	}

	marked() {
		const list = [];
		this.view.forEach((i, k) => { if (this.model.level[i]) list.push(k); });
		return list;
	}

	// move selects the packet some places on.
	move(step) {
		if (!this.view.length) return;
		const at = this.selected < 0 ? (step > 0 ? this.shown[0] - 1 : this.shown[0] + 1) : this.at(this.selected);
		this.goTo(this.view[Math.min(this.view.length - 1, Math.max(0, at + step))]);
	}

	// goTo selects a packet, and scrolls to it if it is not seen. A packet that the filter leaves out takes the filter away.
	goTo(i) {
		if (i === undefined || i < 0) return;
		if (this.at(i) < 0) {
			for (const c of [this.byQP, this.byEnd, this.byOpcode]) c.value = '';
			this.markedOnly.checked = false;
			this.filter();
		}
		const y = this.picture.place(this.at(i)), s = this.scroller, margin = 2 * usualRow;
		if (y < s.scrollTop + margin || y > s.scrollTop + s.clientHeight - margin) s.scrollTop = y - s.clientHeight / 2;
		this.select(i);
	}

	goToTime(time) {
		const {p} = this.model;
		let low = 0, high = this.view.length;
		while (low < high) {
			const mid = low + high >> 1;
			if (p.time[this.view[mid]] < time) low = mid + 1; else high = mid;
		}
		this.scroller.scrollTop = this.picture.place(Math.min(low, this.view.length - 1)) - this.scroller.clientHeight / 2;
	}

	select(i) {
		this.selected = i;
		if (i >= 0 && this.panels.current === 1 && !this.model.findingsOf.has(i)) this.panels.current = 0;
		this.panels.select(i);
		this.listAround(i);
		this.later();
	}

	// listAround gives screen readers the selected packet, and those around it, as a list.
	listAround(i) {
		const m = this.model;
		if (i < 0) {
			this.options.replaceChildren();
			this.scroller.removeAttribute('aria-activedescendant');
			return;
		}
		const at = this.at(i), list = [];
		for (let k = Math.max(0, at - aroundOption); k <= Math.min(this.view.length - 1, at + aroundOption); k++) {
			const j = this.view[k];
			list.push(el('div', {role: 'option', id: 'option' + k, 'aria-selected': k === at, 'aria-posinset': k + 1, 'aria-setsize': this.view.length}, this.line(j)));
		}
		this.options.replaceChildren(...list);
		this.scroller.setAttribute('aria-activedescendant', 'option' + at);
		this.scroller.setAttribute('aria-label', 'Packets in the order of time, ' + m.p.n);
	}

	// line is a packet as a line of text.
	line(i) {
		const m = this.model;
		return [m.isEvent(i) ? '' : 'Frame ' + m.p.frame[i], seconds(m.p.time[i]) + ' s', m.way(i), m.words(i), ...m.marks(i).map((k) => k.text)].filter(Boolean).join(', ');
	}

	// zoom changes the scale, and keeps the packet at a height where it is: the selected one, or that in the middle.
	zoom(factor, y) {
		const s = this.scroller;
		let k = this.selected < 0 ? -1 : this.at(this.selected);
		if (y === undefined && k >= 0) y = this.picture.place(k) - s.scrollTop;
		if (y === undefined || y < 0 || y > s.clientHeight) y = s.clientHeight / 2;
		k = this.picture.near(s.scrollTop + y);
		const from = k >= 0 ? this.picture.place(k) - s.scrollTop : 0;
		this.picture.zoom(factor);
		this.resize();
		if (k >= 0) s.scrollTop = this.picture.place(k) - from;
	}

	setScale(scale) {
		const k = this.shown ? this.shown[0] : 0;
		this.picture.byTime = scale === 'time';
		this.scale.value = scale;
		this.resize();
		if (this.view.length) this.scroller.scrollTop = this.picture.place(Math.min(k, this.view.length - 1));
	}

	resize() {
		this.tall.style.height = Math.min(longest, Math.ceil(this.picture.height)) + 'px';
		this.later();
	}

	theme() {
		const root = document.documentElement;
		const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme:dark)').matches;
		root.dataset.theme = dark ? 'light' : 'dark';
		this.recolor();
	}

	recolor() {
		this.picture.colors = readColors();
		this.panels.select(this.selected);
		this.later();
	}

	// later draws with the next frame of the screen.
	later() {
		if (this.waiting) return;
		this.waiting = true;
		requestAnimationFrame(() => {
			this.waiting = false;
			this.draw();
		});
	}

	draw() {
		const s = this.scroller, width = s.clientWidth, height = s.clientHeight;
		if (!width || !height) return;
		this.picture.heads(this.heads, width);
		this.shown = this.picture.draw(this.ladder, s.scrollTop, width, height, this.selected < 0 ? -1 : this.at(this.selected), this.matchSet);
		const {p} = this.model, time = (k) => this.view.length ? p.time[this.view[Math.min(k, this.view.length - 1)]] : 0;
		this.overview.draw(this.picture.colors, time(this.shown[0]), time(this.shown[1]));
		this.drawn = (this.drawn || 0) + 1;
	}

	key(e) {
		if (e.ctrlKey || e.metaKey || e.altKey || this.help.open) return;
		const field = e.target.closest('input, select, textarea');
		if (e.key === 'Escape') {
			if (field) this.scroller.focus(); else this.select(-1);
			return;
		}
		if (field && field !== this.markedOnly) return;
		const page = Math.max(1, this.shown ? this.shown[1] - this.shown[0] - 1 : 1);
		const inPanel = e.target.closest('#side');
		const actions = {
			j: () => this.move(1), k: () => this.move(-1),
			n: () => this.jump(this.marked(), 1), N: () => this.jump(this.marked(), -1),
			'/': () => { this.search.focus(); this.search.select(); },
			f: () => this.byQP.focus(),
			m: () => { this.markedOnly.checked = !this.markedOnly.checked; this.filter(); },
			'+': () => this.zoom(1.5), '=': () => this.zoom(1.5), '-': () => this.zoom(1 / 1.5),
			0: () => { this.picture.rowHeight = usualRow; this.picture.timeScale = 0; this.picture.show(this.view); this.zoom(1); },
			t: () => this.setScale(this.picture.byTime ? 'rows' : 'time'),
			s: () => { this.side.hidden = !this.side.hidden; },
			d: () => this.theme(), '?': () => this.help.showModal(),
		};
		if (!inPanel) {
			Object.assign(actions, {
				ArrowDown: () => this.move(1), ArrowUp: () => this.move(-1),
				PageDown: () => this.move(page), PageUp: () => this.move(-page),
				Home: () => this.goTo(this.view[0]), End: () => this.goTo(this.view[this.view.length - 1]),
			});
		}
		for (let i = 0; i < this.panels.all.length; i++) actions[i + 1] = () => this.panels.open(i);
		if (!actions[e.key]) return;
		e.preventDefault();
		actions[e.key]();
	}

	// writePrint writes what is seen as a table, which is printed in place of the canvas.
	writePrint() {
		const m = this.model, {p, head} = m;
		const [from, to] = this.shown || [0, 0], end = Math.min(to + 1, from + mostPrinted, this.view.length);
		const rows = [];
		for (let k = from; k < end; k++) {
			const i = this.view[k];
			rows.push([m.isEvent(i) ? '' : String(p.frame[i]), seconds(p.time[i]), m.way(i), [m.words(i), ...m.marks(i).map((x) => '✱ ' + x.text)].join('  ')]);
		}
		this.print.replaceChildren(
			el('p', null, head.ends.slice(0, 50).map((e) => e.letter + ' is ' + e.name).join('; ') + '.'),
			head.verdict ? el('p', {class: 'verdict'}, head.verdict) : '',
			el('p', null, 'Packets ' + (end > from ? from + 1 : 0) + ' to ' + end + ' of ' + this.view.length + ' that are chosen.'),
			table(['frame', 'seconds', 'way', 'packet'], rows),
			...head.findings.map((f) => this.panels.finding(f)), ...head.notes.map((n) => el('p', null, n)));
	}
}
