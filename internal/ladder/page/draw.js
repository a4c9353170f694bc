// draw: the ladder on its canvas.

// The measures, in pixels.
const wide = {frame: 62, time: 148, step: 226, lane: 252, gap: 20, room: 120, share: 0.45}; // where columns end, and lanes begin
const narrow = {frame: 46, time: 112, step: 0, lane: 126, gap: 14, room: 64, share: 0.2};  // without the steps in time
const wideLeast = 680;     // of a ladder: words have a third of it and more
const textHeight = 14;     // a row that has room for words
const tipHeight = 7;       // a row that has room for the tip of an arrow
const mostLanes = 26;     // one a letter
const denseHeight = 2;     // rows below share pixels
const usualRow = 20, mostRow = 48;
const longest = 15e6;      // of what scrolls: browsers have limits
const gapLeast = 100e3, gapTimes = 10; // ns: a gap in time that is pointed out, and how many times the median

// fitCanvas gives a canvas a size, and returns its context, in pixels of CSS.
function fitCanvas(canvas, width, height) {
	const ratio = devicePixelRatio || 1;
	const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
	if (canvas.width !== w || canvas.height !== h) {
		canvas.width = w;
		canvas.height = h;
		canvas.style.width = width + 'px';
		canvas.style.height = height + 'px';
	}
	const g = canvas.getContext('2d');
	g.setTransform(ratio, 0, 0, ratio, 0, 0);
	return g;
}

// readColors reads the colours and fonts of the theme.
function readColors() {
	const style = getComputedStyle(document.documentElement);
	const colors = {};
	for (const name of ['ground', 'raised', 'ink', 'faint', 'line', 'rule', 'data', 'answer', 'trouble', 'wait', 'focus']) {
		colors[name] = style.getPropertyValue('--' + name).trim();
	}
	colors.text = '12px ' + style.getPropertyValue('--mono');
	colors.bold = 'bold ' + colors.text;
	colors.small = '12px ' + style.getPropertyValue('--sans');
	return colors;
}

class Ladder {
	constructor(model) {
		this.model = model;
		this.byTime = false;
		this.rowHeight = usualRow;
		this.timeScale = 0; // pixels a ns
		this.colors = readColors();
	}

	// show takes the packets of a view.
	show(view) {
		this.view = view;
		const {head, p} = this.model;
		const used = new Set();
		const seen = new Uint8Array(head.streams.length);
		for (const i of view) seen[p.stream[i]] = 1;
		const ways = new Set();
		this.severalQPs = false; // from one end to another
		head.streams.forEach((s, k) => {
			if (!seen[k]) return;
			used.add(s.from).add(s.to);
			const way = s.from + ' ' + s.to;
			if (s.qpn > 1 && s.from !== s.to) {
				this.severalQPs ||= ways.has(way);
				ways.add(way);
			}
		});
		const all = [...used].sort((a, b) => a - b);
		this.ends = all.slice(0, mostLanes);
		this.others = all.length - this.ends.length; // ends that share the last lane
		this.laneOf = new Map(all.map((e, k) => [e, Math.min(k, mostLanes - 1)]));
		const gaps = [];
		for (let k = 1; k < view.length; k += Math.max(1, Math.floor(view.length / 5000))) gaps.push(p.time[view[k]] - p.time[view[k - 1]]);
		gaps.sort((a, b) => a - b);
		this.gap = Math.max(gapLeast, gapTimes * (gaps[gaps.length >> 1] || 0));
		this.first = view.length ? p.time[view[0]] : 0;
		this.duration = view.length ? p.time[view[view.length - 1]] - this.first : 0;
		if (!this.timeScale && this.duration) this.timeScale = Math.max(600, Math.min(view.length * usualRow / 2, longest)) / this.duration;
	}

	// place is where a packet of the view begins, in pixels from the top of all.
	place(k) {
		if (this.byTime) return (this.model.p.time[this.view[k]] - this.first) * this.timeScale + usualRow / 2;
		return (k + 0.5) * this.rowHeight;
	}

	get height() { return (this.byTime ? this.duration * this.timeScale : this.view.length * this.rowHeight) + usualRow; }

	// at returns the first packet of the view at or below a place.
	at(y) {
		let low = 0, high = this.view.length;
		while (low < high) {
			const mid = low + high >> 1;
			if (this.place(mid) < y) low = mid + 1; else high = mid;
		}
		return low;
	}

	// near returns the packet of the view that is nearest to a place, or -1.
	near(y) {
		const k = this.at(y);
		if (k >= this.view.length || k > 0 && y - this.place(k - 1) < this.place(k) - y) return k - 1;
		return k;
	}

	// zoom changes the scale by a factor, within what scrolls.
	zoom(factor) {
		if (this.byTime) {
			if (!this.duration) return;
			const least = 200 / this.duration, most = Math.min(longest / this.duration, 1); // a pixel a ns
			this.timeScale = Math.min(Math.max(this.timeScale * factor, Math.min(least, most)), most);
		} else {
			const least = Math.min(usualRow, Math.max(0.01, 400 / Math.max(1, this.view.length)));
			this.rowHeight = Math.min(Math.max(this.rowHeight * factor, least), mostRow, longest / Math.max(1, this.view.length));
		}
	}

	x(end) { return this.columns.lane + this.laneOf.get(end) * this.step; }

	get wordsLeft() { return this.columns.lane + Math.max(0, this.ends.length - 1) * this.step + this.columns.gap; }

	// layout puts the lanes on a width.
	layout(width) {
		const lanes = Math.max(1, this.ends.length - 1), c = this.columns = width < wideLeast ? narrow : wide;
		const room = Math.max(c.room, Math.min((width - c.lane) * c.share, 240 + 60 * lanes));
		this.step = Math.max(14, Math.min(240, room / lanes));
	}

	// heads draws the names of the ends above their lanes.
	heads(canvas, width) {
		if (this.named === this.view && this.namedWidth === width && this.namedColors === this.colors) return;
		[this.named, this.namedWidth, this.namedColors] = [this.view, width, this.colors];
		this.layout(width);
		const g = fitCanvas(canvas, width, 36), c = this.colors;
		g.clearRect(0, 0, width, 36);
		g.textBaseline = 'alphabetic';
		g.font = c.text;
		g.fillStyle = c.faint;
		g.textAlign = 'right';
		g.fillText('frame', this.columns.frame, 29);
		g.fillText('seconds', this.columns.time, 29);
		if (this.columns.step) g.fillText('later by', this.columns.step, 29);
		this.ends.forEach((e, k) => {
			const {letter, name} = this.model.head.ends[e], x = this.x(e);
			g.textAlign = 'center';
			g.font = c.bold;
			g.fillStyle = c.ink;
			g.fillText(letter, x, 31);
			if (this.others && k === mostLanes - 1) {
				g.textAlign = 'left';
				g.fillText('and ' + this.others + ' more', x + 8, 31);
			}
			let room = Math.floor((this.ends.length > 1 ? this.step : 240) / 7.3) - 1, at = x;
			if (this.ends.length === 2 && this.columns === narrow) { // names have room at the sides
				g.textAlign = k ? 'left' : 'right';
				at = (this.x(this.ends[0]) + this.x(this.ends[1])) / 2 + (k ? 5 : -5);
				room = Math.floor((k ? width - at : at) / 7.3);
			}
			if (room < 5) return;
			g.font = c.text;
			g.fillStyle = c.faint;
			g.fillText(name.length > room ? '…' + name.slice(1 - room) : name, at, 15); // addresses differ at their ends
		});
	}

	// draw draws what lies at a place of the whole, and returns the first and the last packet of the view that are seen.
	draw(canvas, top, width, height, selected, matches) {
		const g = fitCanvas(canvas, width, height), c = this.colors;
		this.layout(width);
		g.clearRect(0, 0, width, height);
		const from = this.at(top - usualRow), to = Math.min(this.view.length, this.at(top + height + usualRow));
		this.rows(g, top, width, from, to, selected, matches);
		g.strokeStyle = c.line;
		g.lineWidth = 1;
		g.setLineDash([2, 3]);
		g.beginPath();
		const end = Math.min(height, this.height - top);
		for (const e of this.ends) {
			const x = Math.round(this.x(e)) + 0.5;
			g.moveTo(x, 0);
			g.lineTo(x, end);
		}
		g.stroke();
		g.setLineDash([]);
		this.arrows(g, top, from, to);
		this.texts(g, top, width, from, to);
		return [this.at(top), Math.max(0, this.at(top + height) - 1)];
	}

	// rows marks the selected packet and those that a search has found.
	rows(g, top, width, from, to, selected, matches) {
		const h = this.byTime ? textHeight : this.rowHeight;
		const band = (k) => [Math.floor(this.place(k) - top - h / 2), Math.max(2, h)];
		g.fillStyle = this.colors.raised;
		for (let k = from; k < to; k++) {
			if (!matches.has(k)) continue;
			const [y, high] = band(k);
			g.fillRect(0, y, width, high);
			g.fillStyle = this.colors.wait;
			g.fillRect(0, y, 3, high);
			g.fillStyle = this.colors.raised;
		}
		if (selected >= from && selected < to) {
			const [y, high] = band(selected);
			g.fillRect(0, y, width, high);
			g.strokeStyle = this.colors.focus;
			g.lineWidth = 1.5;
			g.strokeRect(1, y + 0.5, width - 2, Math.max(1, high - 1));
		}
	}

	// arrows draws the packets, those of one colour together. Of many on one pixel one is drawn.
	arrows(g, top, from, to) {
		const {p, level} = this.model, c = this.colors;
		const paths = {request: [], answer: [], event: [], wait: [], trouble: []};
		const drawn = new Map(); // by way and colour: the latest pixel
		const dense = !this.byTime && this.rowHeight < denseHeight;
		const room = this.byTime ? Infinity : this.rowHeight;
		for (let k = from; k < to; k++) {
			const i = this.view[k], o = this.model.opcodeOf(i), s = this.model.streamOf(i);
			let kind = o.class === 'response' || o.class === 'readdata' || o.class === 'iwarpanswer' ? 'answer' : o.class === 'event' ? 'event' : 'request';
			if (level[i] === 2 && p.marks.has(i)) kind = 'trouble';
			else if (level[i] === 1 && p.marks.has(i)) kind = 'wait';
			const y = this.place(k) - top;
			if (dense || this.byTime) {
				const key = (s.from * 4096 + s.to) * 8 + (kind === 'trouble' ? 1 : kind === 'wait' ? 2 : kind === 'answer' ? 3 : 4);
				const pixel = Math.round(y * (dense ? 1 : 2));
				if (drawn.get(key) === pixel) continue;
				drawn.set(key, pixel);
			}
			paths[kind].push(k, y);
		}
		g.lineWidth = 1.5;
		for (const [kind, list] of Object.entries(paths)) {
			if (!list.length) continue;
			g.strokeStyle = g.fillStyle = kind === 'answer' ? c.answer : kind === 'trouble' ? c.trouble : kind === 'wait' ? c.wait : kind === 'event' ? c.ink : c.data;
			g.beginPath();
			for (let n = 0; n < list.length; n += 2) this.arrow(g, this.view[list[n]], list[n + 1], room);
			g.stroke();
		}
	}

	arrow(g, i, y, room) {
		const s = this.model.streamOf(i), a = this.x(s.from), b = this.x(s.to), fate = this.model.fate(i);
		if (a === b) {
			this.glyph(g, i, a, y, Math.max(0.5, Math.min(4, room / 3)));
			return;
		}
		if (room < denseHeight) { // both directions are seen: a packet ends in the middle
			g.moveTo(a, y);
			g.lineTo((a + b) / 2, y);
			return;
		}
		const sign = b > a ? 1 : -1;
		let down = Math.min(4, room / 5);
		if (this.byTime && this.model.p.took[i] >= 0) down = this.model.p.took[i] * this.timeScale;
		if (fate === fateLost || fate === fateDamaged) {
			const x = (a + b) / 2, r = Math.min(5, room / 3);
			g.moveTo(a, y);
			g.lineTo(x, y + down / 2);
			if (r > 1.5) {
				const m = y + down / 2;
				g.moveTo(x - r, m - r);
				g.lineTo(x + r, m + r);
				g.moveTo(x + r, m - r);
				g.lineTo(x - r, m + r);
			}
			return;
		}
		g.moveTo(a, y);
		g.lineTo(b, y + down);
		if (room < tipHeight) return;
		g.moveTo(b - 7 * sign, y + down - 4);
		g.lineTo(b, y + down);
		g.lineTo(b - 7 * sign, y + down + 4);
	}

	// glyph draws what an end does by itself.
	glyph(g, i, x, y, r) {
		switch (this.model.opcodeOf(i).name) {
		case 'state':
			g.rect(x - r, y - r, 2 * r, 2 * r);
			break;
		case 'MR':
			g.moveTo(x - r - 1, y);
			g.lineTo(x, y - r - 1);
			g.lineTo(x + r + 1, y);
			g.lineTo(x, y + r + 1);
			g.closePath();
			break;
		case 'CQE': {
			const dot = new Path2D();
			dot.arc(x, y, r, 0, 7);
			g.fill(dot);
			break;
		}
		default:
			g.moveTo(x + r, y);
			g.arc(x, y, r, 0, 7);
		}
	}

	// texts writes frames, times and words beside the arrows, as far as there is room.
	texts(g, top, width, from, to) {
		const c = this.colors, {p} = this.model, left = this.wordsLeft;
		if (!this.byTime && this.rowHeight < textHeight) {
			this.times(g, top, from, to);
			return;
		}
		g.textBaseline = 'middle';
		g.font = c.text;
		const char = g.measureText('0').width;
		let next = -Infinity;
		for (let k = from; k < to; k++) {
			const y = this.place(k) - top;
			if (y < next) continue;
			next = y + (this.byTime ? textHeight : 0);
			let i = this.view[k], hidden = 0; // by time, a line may stand for several
			while (k + 1 < to && this.place(k + 1) - top < next) {
				k++;
				hidden++;
				if (this.model.isEvent(i) || this.model.level[this.view[k]] > this.model.level[i]) i = this.view[k];
			}
			g.textAlign = 'right';
			g.fillStyle = c.faint;
			if (!this.model.isEvent(i)) g.fillText(p.frame[i], this.columns.frame, y);
			g.fillText(seconds(p.time[i]), this.columns.time, y);
			const first = k - hidden, step = first > 0 ? p.time[this.view[first]] - p.time[this.view[first - 1]] : 0;
			if (step > 0 && this.columns.step) {
				g.fillStyle = step >= this.gap ? c.wait : c.faint;
				g.fillText('+' + span(step), this.columns.step, y);
			}
			g.textAlign = 'left';
			let x = left;
			const write = (text, color) => {
				if (!text || x > width) return;
				g.fillStyle = color;
				g.fillText(text.slice(0, Math.ceil((width - x) / char) + 1), x, y);
				x += (text.length + 2) * char;
			};
			const [what, more] = this.model.parts(i, this.severalQPs);
			write(what, c.ink);
			for (const m of this.model.marks(i)) write('✱ ' + m.text, troubles.has(m.kind) ? c.trouble : c.wait);
			write(more, c.faint);
			if (hidden) write('and ' + hidden + ' more', c.faint);
			if (this.model.findingsOf.has(i)) {
				g.fillStyle = c.trouble;
				g.fillText('⚑', left - 13, y);
			}
		}
	}

	// times writes times where rows are too low for words.
	times(g, top, from, to) {
		g.font = this.colors.text;
		g.textAlign = 'right';
		g.textBaseline = 'middle';
		g.fillStyle = this.colors.faint;
		let next = -Infinity;
		for (let k = from; k < to; k++) {
			const y = this.place(k) - top;
			if (y < next) continue;
			next = y + 3 * textHeight;
			if (!this.model.isEvent(this.view[k])) g.fillText(this.model.p.frame[this.view[k]], this.columns.frame, y);
			g.fillText(seconds(this.model.p.time[this.view[k]]), this.columns.time, y);
		}
	}
}

