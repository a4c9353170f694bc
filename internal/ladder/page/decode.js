// decode: reads the columns that internal/ladder/pack.go writes.

// Numbers reads numbers of variable length from a part of the bytes.
class Numbers {
	constructor(bytes, from, length) {
		this.bytes = bytes;
		this.at = from;
		this.end = from + length;
	}

	next() {
		let value = 0, scale = 1, b;
		do {
			if (this.at >= this.end) throw new Error('the columns of this page are damaged');
			b = this.bytes[this.at++];
			value += (b & 0x7f) * scale;
			scale *= 128;
		} while (b & 0x80);
		return value;
	}

	// signed reads a number in zigzag.
	signed() {
		const v = this.next();
		return v % 2 ? -(v + 1) / 2 : v / 2;
	}
}

// The columns, and the flags of a packet, in the order and with the values of pack.go.
const columnNames = ['time', 'stream', 'opcode', 'flags', 'psn', 'bytes', 'frame', 'took', 'text', 'marks', 'memory'];
const flagAckReq = 1, flagTook = 8, flagText = 16, flagMarks = 32, flagMemory = 64, flagFrame = 128;

// Texts makes texts of templates and numbers. The numbers are kept, and a text is made when it is needed.
class Texts {
	constructor(templates) {
		this.forms = templates.map((t) => t.split('\x01').map((part, i) => i === 0 ? part : {
			base: part[0] === 'x' ? 16 : 10, width: part.charCodeAt(1) - 97, rest: part.slice(2),
		}));
		this.last = new Map(); // by stream and template: the latest numbers
		this.template = [];
		this.start = [];
		this.numbers = [];
	}

	// read reads a text of a stream, and returns its number.
	read(from, stream) {
		const template = from.next();
		const key = stream * this.forms.length + template;
		let last = this.last.get(key);
		if (!last) this.last.set(key, last = new Array(this.forms[template].length - 1).fill(0));
		this.template.push(template);
		this.start.push(this.numbers.length);
		for (let i = 0; i < last.length; i++) {
			last[i] += from.signed();
			this.numbers.push(last[i]);
		}
		return this.template.length - 1;
	}

	get(i) {
		const form = this.forms[this.template[i]];
		let text = form[0], at = this.start[i];
		for (let k = 1; k < form.length; k++) {
			text += this.numbers[at++].toString(form[k].base).padStart(form[k].width, '0') + form[k].rest;
		}
		return text;
	}
}

// unpack returns the bytes of the columns.
async function unpack(base64) {
	const binary = atob(base64);
	const packed = new Uint8Array(binary.length);
	for (let i = 0; i < packed.length; i++) packed[i] = binary.charCodeAt(i);
	const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
	return new Uint8Array(await new Response(stream).arrayBuffer());
}

// decode returns the packets as arrays, a place for each.
function decode(head, bytes) {
	const col = {};
	let from = 0;
	columnNames.forEach((name, i) => {
		col[name] = new Numbers(bytes, from, head.columns[i]);
		from += head.columns[i];
	});
	const n = head.packets;
	const p = {
		n,
		time: new Float64Array(n), // ns
		stream: new Uint32Array(n),
		opcode: new Uint16Array(n),
		flags: new Uint8Array(n),
		psn: new Uint32Array(n),
		bytes: new Uint32Array(n),
		frame: new Uint32Array(n),
		took: new Float64Array(n).fill(-1), // ns, or -1
		text: new Int32Array(n).fill(-1),
		marks: new Map(), // of {kind, text}
		region: new Int32Array(n).fill(-1),
		offset: new Float64Array(n),
		length: new Float64Array(n),
		texts: new Texts(head.texts),
	};
	const psns = new Float64Array(head.streams.length).fill(-1);
	const offsets = new Float64Array(head.regions.length);
	let time = head.start, frame = 0;
	for (let i = 0; i < n; i++) {
		p.time[i] = time += col.time.next();
		const s = p.stream[i] = col.stream.next();
		p.opcode[i] = col.opcode.next();
		const flags = p.flags[i] = col.flags.next();
		p.psn[i] = psns[s] += col.psn.signed() + 1;
		p.bytes[i] = col.bytes.next();
		frame += 1;
		if (flags & flagFrame) frame += col.frame.signed();
		p.frame[i] = frame;
		if (flags & flagTook) p.took[i] = col.took.next();
		if (flags & flagText) p.text[i] = p.texts.read(col.text, s);
		if (flags & flagMarks) {
			const list = [];
			for (let k = col.marks.next(); k > 0; k--) list.push({kind: col.marks.next(), text: p.texts.read(col.marks, s)});
			p.marks.set(i, list);
		}
		if (flags & flagMemory) {
			const r = p.region[i] = col.memory.next();
			p.offset[i] = offsets[r] += col.memory.signed();
			p.length[i] = col.memory.next();
		}
	}
	return p;
}

