// Elements are made of text alone, so that nothing from a packet can become markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") e.className = value;
    else if (key === "on") for (const [event, f] of Object.entries(value)) e.addEventListener(event, f);
    else if (key in e && typeof value !== "string") e[key] = value;
    else e.setAttribute(key, value);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

export const fill = (parent, ...children) => parent.replaceChildren(...children);

// duration writes nanoseconds as people do.
export function duration(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (Math.abs(ns) >= size) return `${Number((ns / size).toFixed(3))} ${unit}`;
  }
  return `${ns} ns`;
}
