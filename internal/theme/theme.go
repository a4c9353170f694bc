// Package theme has the colours and the fonts of pictures and pages.
package theme

// Mono is the font of packets, commands and values.
const Mono = `ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace`

// Sans is the font of prose. Chinese has a place in it.
const Sans = `system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Noto Sans CJK SC","PingFang SC","Microsoft YaHei",sans-serif`

// The colours, as custom properties of CSS. Text of ink, faint, data, answer, trouble and wait has a contrast of 4.5 to 1
// or more on ground and on raised.
const (
	light = "--ground:#fff;--raised:#f6f8fa;--ink:#1b1f24;--faint:#59636e;--line:#8c959f;--rule:#d1d9e0;" +
		"--data:#0a58ca;--answer:#1a7f37;--trouble:#c4201c;--wait:#8a5000;--focus:#0969da"
	dark = "--ground:#0d1117;--raised:#161b22;--ink:#e6edf3;--faint:#9198a1;--line:#6e7681;--rule:#30363d;" +
		"--data:#79b8ff;--answer:#56d364;--trouble:#ff8078;--wait:#e3b341;--focus:#58a6ff"
	paper = "--ground:#fff;--raised:#fff;--ink:#000;--faint:#444;--line:#666;--rule:#999"
)

// Colors defines the colours for elements that a selector chooses: light, dark where the reader's system is dark, and
// black on white in print. An attribute data-theme of "light" or "dark" at the element comes before the system.
func Colors(selector string) string {
	return selector + "{color-scheme:light;" + light + "}\n" +
		"@media (prefers-color-scheme:dark){" + selector + "{color-scheme:dark;" + dark + "}}\n" +
		selector + "[data-theme=light]{color-scheme:light;" + light + "}\n" +
		selector + "[data-theme=dark]{color-scheme:dark;" + dark + "}\n" +
		"@media print{" + selector + "," + selector + "[data-theme]{color-scheme:light;" + light + ";" + paper + "}}\n"
}
