// model: what is known of the packets: words, marks, what is in flight, filters and search.

const fateLost = 2, fateDamaged = 3;
const troubles = new Set([0, 1, 2, 5, 8]); // kinds of marks: lost, damaged, repeated, refused, failed
const kindRefusal = 5, kindWait = 6;
const psnBits = 24;

// ahead is how far one PSN is ahead of another.
const ahead = (a, b) => ((a - b) << (32 - psnBits)) >> (32 - psnBits);

const hex = (n, width) => '0x' + n.toString(16).padStart(width, '0');

// queue names the QP of a stream, or the TCP connection of iWARP.
const queue = (s) => s.label || 'QP ' + hex(s.qpn, 6);

// span writes a time of ns with three digits.
function span(ns) {
	if (ns < 0) return '−' + span(-ns);
	for (const [unit, name] of [[1, 'ns'], [1e3, 'µs'], [1e6, 'ms']]) {
		if (ns < 999.5 * unit) return Number((ns / unit).toPrecision(3)) + ' ' + name;
	}
	return Number((ns / 1e9).toPrecision(4)) + ' s';
}

// size writes a number of bytes, or of others with a unit.
function size(n, unit = 'B') {
	for (const prefix of ['', 'k', 'M', 'G']) {
		if (n < 999.5) return Number(n.toPrecision(3)) + ' ' + prefix + unit;
		n /= 1000;
	}
	return Number(n.toPrecision(3)) + ' T' + unit;
}

const seconds = (ns) => (ns / 1e9).toFixed(6);

const bytes = (n) => n + (n === 1 ? ' byte' : ' bytes');

const count = (n, what) => n.toLocaleString('en') + ' ' + what + (n === 1 ? '' : 's');

class Model {
	constructor(head, packets) {
		this.head = head;
		this.p = packets;
		this.words_ = new Map();
		this.findingsOf = new Map(); // by packet: the findings that name it
		head.findings.forEach((f) => f.items.forEach((i) => {
			if (!this.findingsOf.has(i)) this.findingsOf.set(i, []);
			this.findingsOf.get(i).push(f);
		}));
		this.levels();
		this.follow();
	}

	// levels sets how loud each packet is: 2 for trouble, 1 for a wait or a note.
	levels() {
		const level = this.level = new Uint8Array(this.p.n);
		for (const [i, list] of this.p.marks) level[i] = list.some((m) => troubles.has(m.kind)) ? 2 : 1;
		for (const [i, list] of this.findingsOf) {
			level[i] = Math.max(level[i], list.some((f) => f.severity === 'error') ? 2 : 1);
		}
	}

	opcodeOf(i) { return this.head.opcodes[this.p.opcode[i]]; }
	streamOf(i) { return this.head.streams[this.p.stream[i]]; }
	isEvent(i) { return this.opcodeOf(i).class === 'event'; }
	isIWARP(i) { return this.opcodeOf(i).class.startsWith('iwarp'); }
	fate(i) { return this.p.flags[i] >> 1 & 3; }
	marks(i) { return (this.p.marks.get(i) || []).map((m) => ({kind: m.kind, text: this.p.texts.get(m.text)})); }
	fields(i) { return this.p.text[i] < 0 ? '' : this.p.texts.get(this.p.text[i]); }

	// name is a packet in few words.
	name(i) { return this.opcodeOf(i).name + (this.isEvent(i) ? '' : ', frame ' + this.p.frame[i]); }

	// parts is a packet in words, in two parts: what it is, and what else it says. Marks belong between them.
	parts(i, withQP) {
		const o = this.opcodeOf(i), text = this.fields(i);
		if (o.class === 'event') return [o.name + (withQP && this.streamOf(i).qpn ? ', QP ' + hex(this.streamOf(i).qpn, 6) : '') + ': ' + text, ''];
		if (o.class === 'cm') return [text || o.name, ''];
		let what = o.name + (withQP ? ', ' + queue(this.streamOf(i)) : '') + (this.isIWARP(i) ? '' : ', PSN ' + this.p.psn[i]);
		if (this.p.bytes[i]) what += ', ' + bytes(this.p.bytes[i]);
		return [what, [text, this.p.flags[i] & flagAckReq ? 'asks for an ACK' : ''].filter(Boolean).join(', ')];
	}

	// words is a packet in words, without its marks.
	words(i) { return this.parts(i, true).filter(Boolean).join(', '); }

	// way says from where to where a packet goes.
	way(i) {
		const s = this.streamOf(i), letter = (e) => this.head.ends[e].letter;
		const fate = this.fate(i);
		return s.from === s.to ? letter(s.from) : letter(s.from) + ' to ' + letter(s.to) +
			(fate === fateLost ? ', lost' : fate === fateDamaged ? ', damaged' : '');
	}

	// follow finds out, for each packet of RC, how many packets of its requester are unacknowledged behind it, and for each
	// answer the time since its request.
	follow() {
		const p = this.p, streams = this.head.streams;
		this.flight = new Int32Array(p.n).fill(-1);
		this.rtt = new Float64Array(p.n).fill(NaN);
		const state = streams.map(() => ({began: false, next: 0, una: 0, sent: new Map()}));
		for (let i = 0; i < p.n; i++) {
			const kind = this.opcodeOf(i).class;
			if (kind === 'request' || kind === 'read') {
				const s = state[p.stream[i]], psn = p.psn[i];
				if (!s.began) Object.assign(s, {began: true, next: psn, una: psn});
				const again = s.sent.has(psn);
				s.sent.set(psn, again ? NaN : p.time[i]);
				if (ahead(psn, s.next) >= 0) s.next = psn + 1 & 0xffffff;
				this.flight[i] = Math.max(0, ahead(s.next, s.una));
			} else if (kind === 'response' || kind === 'readdata') {
				const to = streams[p.stream[i]].answers;
				if (to < 0 || !state[to].began) continue;
				this.answer(i, state[to]);
			}
		}
	}

	answer(i, s) {
		const psn = this.p.psn[i];
		const sent = s.sent.get(psn);
		if (sent !== undefined) this.rtt[i] = this.p.time[i] - sent;
		const refused = (this.p.marks.get(i) || []).some((m) => m.kind === kindRefusal || m.kind === kindWait);
		const una = refused ? psn : psn + 1 & 0xffffff;
		const n = ahead(una, s.una);
		if (n > 0 && n < 1 << 20) {
			if (n > s.sent.size) {
				for (const old of s.sent.keys()) if (ahead(old, una) < 0) s.sent.delete(old);
			} else {
				for (let k = s.una; k !== una; k = k + 1 & 0xffffff) s.sent.delete(k);
			}
			s.una = una;
			if (ahead(una, s.next) > 0) s.next = una; // a READ takes a PSN for each of its responses
		}
		this.flight[i] = Math.max(0, ahead(s.next, s.una));
	}

	// select returns the packets that pass a filter: {qp, end, opcode, marked}, of which each may be null.
	select(f) {
		const list = new Int32Array(this.p.n);
		let n = 0;
		const wanted = this.head.streams.map((s, i) => (f.qp === null || s.qpn === f.qp || this.peerQPN(i) === f.qp) &&
			(f.end === null || s.from === f.end || s.to === f.end));
		for (let i = 0; i < this.p.n; i++) {
			if (wanted[this.p.stream[i]] && (f.opcode === null || this.p.opcode[i] === f.opcode) && (!f.marked || this.level[i])) list[n++] = i;
		}
		return list.subarray(0, n);
	}

	// peerQPN is the QP that sends the packets of a stream, if an answer has shown it.
	peerQPN(stream) {
		if (!this.peers) {
			this.peers = this.head.streams.map(() => -1);
			this.head.streams.forEach((s, i) => {
				if (s.answers >= 0) {
					this.peers[i] = this.head.streams[s.answers].qpn;
					this.peers[s.answers] = s.qpn;
				}
			});
		}
		return this.peers[stream];
	}

	// search returns which of the packets in a view match: a number is a PSN or a frame; words are looked for in all texts.
	search(view, query) {
		query = query.trim().toLowerCase();
		if (!query) return [];
		const number = /^(?:psn |frame )?(\d+)$/.exec(query);
		const found = [];
		for (let k = 0; k < view.length; k++) {
			const i = view[k];
			if (number) {
				if (this.isEvent(i)) continue;
				const n = Number(number[1]);
				const psn = this.p.psn[i] === n && !this.isIWARP(i), frame = this.p.frame[i] === n;
				const is = query.startsWith('psn') ? psn : query.startsWith('frame') ? frame : psn || frame;
				if (is) found.push(k);
			} else if (this.allWords(i).includes(query)) {
				found.push(k);
			}
		}
		return found;
	}

	allWords(i) {
		let words = this.words(i);
		for (const m of this.marks(i)) words += '\n' + m.text;
		for (const f of this.findingsOf.get(i) || []) words += '\n' + f.title;
		return words.toLowerCase();
	}
}

