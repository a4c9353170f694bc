// memory: which part of the remote memory each packet writes or reads.

class Memory {
	// Of each packet: region is the index of the region or -1, offset and length are bytes, and write says which way.
	constructor(model) {
		const p = model.p;
		this.model = model;
		this.region = new Int32Array(p.n).fill(-1);
		this.offset = new Float64Array(p.n);
		this.length = new Float64Array(p.n);
		this.write = new Uint8Array(p.n);
		this.size = Float64Array.from(model.head.regions, (r) => r.size);
		const messages = model.head.streams.map(() => []); // of each stream, in order: the requests that name memory
		for (let i = 0; i < p.n; i++) {
			const o = model.opcodeOf(i), s = p.stream[i];
			if (p.region[i] >= 0) {
				const m = {psn: p.psn[i], region: p.region[i], offset: p.offset[i], length: p.length[i], mtu: p.bytes[i], read: o.class === 'read'};
				this.size[m.region] = Math.max(this.size[m.region], m.offset + m.length);
				messages[s].push(m);
				if (o.class === 'iwarpread') this.touch(i, m, 0, m.length, 0); // its answer goes to other memory
				else if (!m.read && !o.name.includes('FLUSH')) this.touch(i, m, 0, p.bytes[i] || m.length, 1); // atomics have no payload
			} else if (o.class === 'readdata' && p.bytes[i]) { // without bytes it answers a FLUSH
				const to = model.head.streams[s].answers;
				const m = to >= 0 && this.messageOf(messages[to], p.psn[i], true);
				if (m) this.touch(i, m, o.place === 'last' ? m.length - p.bytes[i] : ahead(p.psn[i], m.psn) * p.bytes[i], p.bytes[i], 0);
			} else if ((o.place === 'middle' || o.place === 'last') && o.name.includes('WRITE')) {
				const m = this.messageOf(messages[s], p.psn[i], false);
				if (m) this.touch(i, m, ahead(p.psn[i], m.psn) * m.mtu, p.bytes[i], 1);
			}
		}
	}

	// messageOf returns the latest message that began at or before a PSN.
	messageOf(list, psn, read) {
		for (let k = list.length - 1, steps = 0; k >= 0 && steps < 4096; k--, steps++) {
			if (list[k].read === read && ahead(psn, list[k].psn) >= 0) return list[k];
		}
		return null;
	}

	touch(i, m, offset, length, write) {
		if (offset < 0 || offset + length > m.length) return; // of a message that is not in the capture
		this.region[i] = m.region;
		this.offset[i] = m.offset + offset;
		this.length[i] = length;
		this.write[i] = write;
	}

	// fill returns cells for each region: 0 for what no packet has touched up to one, 1 for read, 2 for written.
	fill(upTo, cells) {
		const regions = this.size.length;
		const list = Array.from({length: regions}, () => ({cells: new Uint8Array(cells), written: 0, read: 0}));
		for (let i = 0; i <= upTo && i < this.region.length; i++) {
			const r = this.region[i];
			if (r < 0 || this.model.fate(i) >= fateLost) continue;
			const scale = cells / this.size[r], kind = this.write[i] ? 2 : 1, of = list[r];
			if (kind === 2) of.written += this.length[i]; else of.read += this.length[i];
			const end = Math.max(Math.floor(this.offset[i] * scale) + 1, Math.ceil((this.offset[i] + this.length[i]) * scale));
			for (let k = Math.floor(this.offset[i] * scale); k < end && k < cells; k++) of.cells[k] = Math.max(of.cells[k], kind);
		}
		return list;
	}
}

