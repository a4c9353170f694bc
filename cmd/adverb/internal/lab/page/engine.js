// The engine: package stage in WebAssembly. Each function returns what Go answers, or throws its error.

async function bytes(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`load ${url}: ${response.status} ${response.statusText}`);
  // A server may have taken the gzip away already, by a Content-Encoding of its own.
  const raw = new Uint8Array(await response.arrayBuffer());
  if (raw[0] !== 0x1f || raw[1] !== 0x8b) return raw;
  const plain = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).arrayBuffer();
}

export async function load() {
  const go = new globalThis.Go();
  const { instance } = await WebAssembly.instantiate(await bytes("engine.wasm.gz"), go.importObject);
  await new Promise((ready, failed) => {
    globalThis.adverbReady = ready;
    go.run(instance).then(() => failed(new Error("the engine has ended")), failed);
  });
  const call = (name) => (...args) => {
    const answer = JSON.parse(globalThis.adverbStage[name](...args));
    if (answer && answer.error) throw new Error(answer.error);
    return answer;
  };
  const engine = {};
  for (const name of ["lessons", "play", "step", "undo", "decide", "packet", "log", "explain", "version"]) engine[name] = call(name);
  return engine;
}
