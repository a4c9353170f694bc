// panels: what stands beside the ladder. All texts go in as text, never as HTML.

// el makes an element. Attributes that are functions are listeners.
function el(name, attributes, ...children) {
	const e = document.createElement(name);
	for (const [key, value] of Object.entries(attributes || {})) {
		if (typeof value === 'function') e.addEventListener(key, value);
		else if (value !== null && value !== false) e.setAttribute(key, value === true ? '' : value);
	}
	e.append(...children.filter((c) => c !== null && c !== undefined));
	return e;
}

const table = (heads, rows, attributes) => el('table', attributes,
	el('thead', null, el('tr', null, ...heads.map((h) => el('th', {scope: 'col'}, h)))),
	el('tbody', null, ...rows.map((r) => el('tr', null, ...r.map((c) => el('td', null, c))))));

const regionCells = 256;

class Panels {
	constructor(model, memory, go) {
		Object.assign(this, {model, memory, go, tabs: document.getElementById('tabs'), panel: document.getElementById('panel')});
		const findings = model.head.findings.length;
		this.all = [
			['Packet', () => this.packet()],
			['Findings' + (findings ? ' (' + findings + ')' : ''), () => this.findings()],
			['Memory', () => this.regions()],
			['QPs', () => this.qps()],
			['About', () => this.about()],
		];
		this.tabs.append(...this.all.map(([name], i) => el('button', {type: 'button', role: 'tab', id: 'tab' + i, 'aria-controls': 'panel', click: () => this.open(i)}, name)));
		this.tabs.addEventListener('keydown', (e) => {
			const step = {ArrowRight: 1, ArrowLeft: -1}[e.key];
			if (!step) return;
			e.preventDefault();
			e.stopPropagation();
			this.open((this.current + step + this.all.length) % this.all.length);
			this.tabs.children[this.current].focus();
		});
		this.current = 0;
		this.selected = -1;
	}

	open(i) {
		this.current = i;
		[...this.tabs.children].forEach((t, k) => {
			t.setAttribute('aria-selected', k === i);
			t.tabIndex = k === i ? 0 : -1;
		});
		this.panel.setAttribute('aria-labelledby', 'tab' + i);
		this.panel.replaceChildren(...this.all[i][1]());
		this.panel.scrollTop = 0;
	}

	// select shows a packet, or none by -1.
	select(i) {
		this.selected = i;
		const top = this.panel.scrollTop;
		this.open(this.current);
		this.panel.scrollTop = top;
	}

	packet() {
		const i = this.selected, m = this.model;
		if (i < 0) return [el('p', {class: 'faint'}, 'Choose a packet: click on it, or use the arrow keys.')];
		const {p} = m, s = m.streamOf(i), o = m.opcodeOf(i), ends = m.head.ends;
		const rows = [];
		const row = (name, value) => rows.push(el('dt', null, name), el('dd', null, value));
		const name = (e) => ends[e].letter + '  ' + ends[e].name;
		if (s.from === s.to) {
			row('at', name(s.from));
		} else {
			row('from', name(s.from));
			row('to', name(s.to));
		}
		row('at', seconds(p.time[i]) + ' s');
		if (p.took[i] >= 0) row('took', span(p.took[i]));
		if (o.class !== 'event') {
			if (m.isIWARP(i)) {
				row('in', s.label);
			} else {
				row('QP', hex(s.qpn, 6));
				row('PSN', p.psn[i] + ' (' + hex(p.psn[i], 6) + ')');
			}
			row('payload', bytes(p.bytes[i]));
			if (p.flags[i] & flagAckReq) row('asks for', 'an ACK');
		} else if (s.qpn) {
			row('QP', hex(s.qpn, 6));
		}
		const fields = m.fields(i);
		if (fields) row('says', fields);
		if (!Number.isNaN(m.rtt[i])) row('answers', 'after ' + span(m.rtt[i]));
		if (m.flight[i] >= 0) row('in flight', count(m.flight[i], 'packet'));
		const r = this.memory.region[i];
		if (r >= 0) row(this.memory.write[i] ? 'writes' : 'reads', m.head.regions[r].key + ' ' + m.head.regions[r].rkey + ', ' + bytes(this.memory.length[i]) + ' at ' + address(m.head.regions[r], this.memory.offset[i]));
		return [
			el('h2', null, m.name(i)),
			el('dl', null, ...rows),
			...m.marks(i).map((k) => el('p', {class: troubles.has(k.kind) ? 'mark trouble' : 'mark wait'}, k.text)),
			...(m.findingsOf.get(i) || []).map((f) => this.finding(f)),
		];
	}

	finding(f) {
		const {p} = this.model;
		return el('article', {class: 'finding ' + f.severity},
			el('h3', null, f.title),
			el('p', {class: 'faint'}, [f.severity, f.certainty, f.where].filter(Boolean).join(' · ')),
			f.words ? el('p', null, f.words) : null,
			f.items.length ? el('p', null, 'Frames ', ...f.items.flatMap((i, k) => [k ? ' ' : '', el('button', {type: 'button', class: 'link', click: () => this.go(i)}, String(p.frame[i]))]),
				f.count > f.items.length ? ', ' + f.count.toLocaleString('en') + ' in all' : '') : null,
			f.remedy && f.remedy.length ? el('ol', null, ...f.remedy.map((r) => el('li', null, r))) : null,
			f.wrongIf ? el('p', {class: 'faint'}, 'This would be wrong if: ' + f.wrongIf) : null,
			f.filter ? el('p', null, el('code', null, f.filter)) : null);
	}

	findings() {
		const {head} = this.model;
		return [
			head.verdict ? el('p', {class: 'verdict'}, head.verdict) : null,
			...head.findings.map((f) => this.finding(f)),
			head.findings.length ? null : el('p', {class: 'faint'}, head.verdict ? 'No findings.' : 'The packets were not diagnosed.'),
		].filter(Boolean);
	}

	// regions draws the remote memory, as far as packets up to the selected one, or all, have filled it.
	regions() {
		const {head, p} = this.model, upTo = this.selected < 0 ? p.n - 1 : this.selected;
		if (!head.regions.length) return [el('p', {class: 'faint'}, 'No packet names remote memory.')];
		const list = this.memory.fill(upTo, regionCells);
		const most = 200;
		return [
			el('p', {class: 'faint'}, this.selected < 0 ? 'After the last packet.' : 'After frame ' + p.frame[upTo] + '. Choose other packets, and the memory fills.'),
			...head.regions.slice(0, most).map((r, k) => {
				const strip = el('canvas', {class: 'strip', role: 'img', 'aria-label': size(list[k].written) + ' written, ' + size(list[k].read) + ' read of ' + size(this.memory.size[k])});
				requestAnimationFrame(() => this.strip(strip, k, list[k].cells));
				return el('section', {class: 'region'},
					el('h3', null, head.ends[r.end].letter + ', ' + r.key + ' ' + r.rkey),
					strip,
					el('p', {class: 'faint'}, address(r, 0) + ' to ' + address(r, this.memory.size[k])),
					el('p', null, 'written ' + size(list[k].written) + ', read ' + size(list[k].read) + ', of ' + size(this.memory.size[k])));
			}),
			head.regions.length > most ? el('p', {class: 'faint'}, count(head.regions.length - most, 'more region') + '.') : null,
		].filter(Boolean);
	}

	strip(canvas, region, cells) {
		const width = canvas.clientWidth, c = readColors(), g = fitCanvas(canvas, width, 22);
		canvas.style.width = '100%';
		g.fillStyle = c.raised;
		g.fillRect(0, 0, width, 22);
		for (const kind of [1, 2]) {
			g.fillStyle = kind === 2 ? c.data : c.answer;
			for (let k = 0; k < cells.length; k++) {
				if (cells[k] !== kind) continue;
				const x = Math.floor(k * width / cells.length), end = Math.ceil((k + 1) * width / cells.length);
				g.fillRect(x, kind === 2 ? 0 : 5, end - x, kind === 2 ? 22 : 12);
			}
		}
		g.strokeStyle = c.line;
		g.strokeRect(0.5, 0.5, width - 1, 21);
		const i = this.selected;
		if (i >= 0 && this.memory.region[i] === region) {
			const scale = width / this.memory.size[region];
			g.strokeStyle = c.focus;
			g.lineWidth = 2;
			g.strokeRect(Math.max(1, this.memory.offset[i] * scale - 1), 1, Math.max(4, this.memory.length[i] * scale), 20);
		}
	}

	// qps sums up what went to each QP, up to the selected packet, or in all.
	qps() {
		const m = this.model, {p, head} = m, upTo = this.selected < 0 ? p.n - 1 : this.selected;
		const sums = head.streams.map(() => ({packets: 0, bytes: 0, repeated: 0, refused: 0, flight: -1, psn: -1, state: ''}));
		const states = new Map(); // by end and QP
		for (let i = 0; i <= upTo; i++) {
			const s = sums[p.stream[i]], o = m.opcodeOf(i);
			if (o.class === 'event') {
				if (o.name !== 'state') continue;
				const state = /^[A-Z]+ to ([A-Z]+)$/.exec(m.fields(i));
				if (state) states.set(m.streamOf(i).to + ' ' + m.streamOf(i).qpn, state[1]);
				continue;
			}
			s.packets++;
			s.bytes += p.bytes[i];
			s.psn = p.psn[i];
			for (const k of p.marks.get(i) || []) {
				if (k.kind === 2) s.repeated++;
				if (k.kind === kindRefusal || k.kind === kindWait) s.refused++;
			}
			if (m.flight[i] >= 0) {
				const answers = head.streams[p.stream[i]].answers;
				const requests = o.class === 'request' || o.class === 'read' ? s : sums[answers];
				if (requests) requests.flight = m.flight[i];
			}
		}
		const rows = [];
		head.streams.forEach((s, k) => {
			const sum = sums[k];
			if (!sum.packets) return;
			rows.push([head.ends[s.to].letter + ' ' + (s.label || hex(s.qpn, 6)), states.get(s.to + ' ' + s.qpn) || '–', sum.packets.toLocaleString('en'), size(sum.bytes), s.label ? '–' : String(sum.psn),
				sum.flight < 0 ? '–' : String(sum.flight), String(sum.repeated), String(sum.refused)]);
		});
		return [
			el('p', {class: 'faint'}, (this.selected < 0 ? 'All packets' : 'Up to frame ' + p.frame[upTo]) + ', by the QP that they are for.'),
			table(['QP', 'state', 'packets', 'payload', 'PSN', 'flight', 'again', 'NAKs'], rows.slice(0, 500), {class: 'numbers'}),
			el('p', {class: 'faint'}, 'Flight: packets without an answer yet; again: repeats. States are known where adverb has recorded them.'),
		];
	}

	about() {
		const {head, p} = this.model;
		return [
			el('h2', null, 'Ends'),
			el('ul', {class: 'plain'}, ...head.ends.slice(0, 500).map((e) => el('li', null, el('b', null, e.letter), ' ' + e.name))),
			el('h2', null, 'Signs'),
			el('ul', {class: 'plain'},
				el('li', {class: 'data'}, 'request'), el('li', {class: 'answer'}, 'answer'),
				el('li', {class: 'trouble'}, 'lost (×), damaged, repeated or refused'), el('li', {class: 'wait'}, 'a wait, a gap, congestion'),
				el('li', null, '⚑ a finding of the diagnosis'),
				el('li', null, '○ a work request is posted, ● completes; □ another state; ◇ registered memory')),
			head.notes.length ? el('h2', null, 'Notes') : null,
			...head.notes.map((n) => el('p', null, n)),
			el('p', {class: 'faint'}, count(p.n, 'packet') + '. Round trips and packets in flight are as the capture shows them, at its place.'),
		].filter(Boolean);
	}
}

// address is an address in a region.
function address(region, offset) {
	return '0x' + (BigInt(region.base) + BigInt(offset)).toString(16);
}

