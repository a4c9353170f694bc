// charts: rate, packets in flight and round trips over the whole time, above the ladder.

const chartHeight = 34, chartGap = 5, chartLeft = 150, markHeight = 8, axisHeight = 15;

class Charts {
	constructor(canvas, model, go) {
		Object.assign(this, {canvas, model, go, view: null, window: document.getElementById('window')});
		const to = (e) => {
			const x = e.offsetX - chartLeft, width = canvas.clientWidth - chartLeft;
			if (x >= 0) go(this.first + (this.last - this.first) * Math.min(1, x / width));
		};
		canvas.addEventListener('pointerdown', (e) => {
			canvas.setPointerCapture(e.pointerId);
			to(e);
		});
		canvas.addEventListener('pointermove', (e) => { if (e.buttons & 1) to(e); });
	}

	// show takes the packets of a view, and sums them up by pixels.
	show(view) {
		this.view = view;
		this.bins = null;
	}

	sum(width) {
		const {p, flight, rtt, level} = this.model, view = this.view;
		this.first = view.length ? p.time[view[0]] : 0;
		this.last = view.length ? Math.max(p.time[view[view.length - 1]], this.first + 1) : 1;
		const bins = {width, bytes: new Float64Array(width), flight: new Float64Array(width).fill(NaN), rtt: new Float64Array(width).fill(NaN), level: new Uint8Array(width)};
		const scale = (width - 1) / (this.last - this.first);
		const now = new Map(); // in flight, by requests
		const behind = new Float64Array(width).fill(NaN); // in flight behind the last packet of a bin
		let sum = 0;
		for (let k = 0; k < view.length; k++) {
			const i = view[k], x = Math.floor((p.time[i] - this.first) * scale);
			bins.bytes[x] += p.bytes[i];
			if (level[i] > bins.level[x]) bins.level[x] = level[i];
			if (flight[i] >= 0) {
				const answers = this.model.streamOf(i).answers, kind = this.model.opcodeOf(i).class;
				const s = kind === 'request' || kind === 'read' ? p.stream[i] : answers;
				sum += flight[i] - (now.get(s) || 0);
				now.set(s, flight[i]);
				if (!(bins.flight[x] >= sum)) bins.flight[x] = sum;
				behind[x] = sum;
			}
			if (!(bins.rtt[x] >= rtt[i]) && !Number.isNaN(rtt[i])) bins.rtt[x] = rtt[i];
		}
		for (let x = 1; x < width; x++) if (Number.isNaN(bins.flight[x])) bins.flight[x] = behind[x] = behind[x - 1];
		this.binTime = (this.last - this.first) / width;
		this.bins = bins;
	}

	// draw draws what has changed: a frame around the part that the ladder shows from one time to another, and the charts
	// if there are others, or other colours.
	draw(colors, from, to) {
		const full = this.canvas.parentElement.clientWidth, width = Math.max(10, Math.floor(full - chartLeft));
		if (!this.bins || this.bins.width !== width || this.drawn !== colors) {
			if (!this.bins || this.bins.width !== width) this.sum(width);
			this.drawn = colors;
			this.paint(colors, full, width);
		}
		const scale = width / (this.last - this.first);
		const left = Math.max(0, (from - this.first) * scale), right = Math.min(width, (to - this.first) * scale);
		this.window.style.transform = 'translateX(' + (chartLeft + left - 2) + 'px)';
		this.window.style.width = Math.max(5, right - left + 4) + 'px';
	}

	paint(colors, full, width) {
		const height = 3 * (chartHeight + chartGap) + markHeight + axisHeight;
		const g = fitCanvas(this.canvas, full, height);
		g.clearRect(0, 0, full, height);
		const b = this.bins, most = (list) => list.reduce((m, v) => v > m ? v : m, 0);
		const sent = most(b.bytes), flight = most(b.flight), rtt = most(b.rtt);
		const rate = this.last - this.first > 1 ? size(sent / this.binTime * 1e9, 'B/s') : '–';
		this.band(g, colors, 0, 'rate', 'up to ' + rate, b.bytes, sent, colors.data, true);
		this.band(g, colors, 1, 'in flight', 'up to ' + count(flight, 'packet'), b.flight, flight, colors.answer, true);
		this.band(g, colors, 2, 'round trip', rtt ? 'up to ' + span(rtt) : 'not seen', b.rtt, rtt, colors.wait, false);
		const y = 3 * (chartHeight + chartGap);
		for (const level of [1, 2]) {
			g.fillStyle = level === 2 ? colors.trouble : colors.wait;
			for (let x = 0; x < width; x++) if (b.level[x] === level) g.fillRect(chartLeft + x - 0.5, y, 2, markHeight);
		}
		g.fillStyle = colors.faint;
		const ticks = Math.max(1, Math.min(5, Math.floor(width / 110)));
		for (let k = 0; k <= ticks; k++) {
			g.textAlign = k === 0 ? 'left' : k === ticks ? 'right' : 'center';
			g.fillText(span(this.first + (this.last - this.first) * k / ticks), chartLeft + width * k / ticks, height - 3);
		}
	}

	band(g, colors, row, name, most, values, max, color, filled) {
		const top = row * (chartHeight + chartGap) + 2, bottom = top + chartHeight;
		g.font = colors.small;
		g.textAlign = 'left';
		g.textBaseline = 'alphabetic';
		g.fillStyle = colors.ink;
		g.fillText(name, 10, top + 14);
		g.fillStyle = colors.faint;
		g.fillText(most, 10, top + 29);
		g.strokeStyle = colors.rule;
		g.lineWidth = 1;
		g.beginPath();
		g.moveTo(chartLeft, bottom + 0.5);
		g.lineTo(this.canvas.clientWidth, bottom + 0.5);
		g.stroke();
		if (!max) return;
		g.fillStyle = color;
		for (let x = 0; x < values.length; x++) {
			const h = values[x] / max * (chartHeight - 3);
			if (h > 0) g.fillRect(chartLeft + x, bottom - Math.max(1, h), filled ? 1 : 1.5, filled ? Math.max(1, h) : 2);
		}
	}
}

