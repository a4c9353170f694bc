// The beginning: modules and WebAssembly are for pages that come from a server. A page that was opened as a file says so.
if (location.protocol === "file:") document.getElementById("file").hidden = false;
else import("./main.js");
