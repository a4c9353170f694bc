package lab

import (
	"context"
	"embed"
	"fmt"
	"io"
	"path"

	"github.com/adverb-rdma/adverb/internal/theme"
)

//go:embed page
var page embed.FS

// kinds are the types of files, by the ends of their names.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".gz": "application/gzip",
}

// The files that are not in the directory page.
const (
	themeFile   = "theme.css"
	engineFile  = "engine.wasm.gz"
	runtimeFile = "wasm_exec.js" // Go's: what a page needs to run its programs
)

// files returns all files of the page. What it has to compile for them, it says on log.
func files(ctx context.Context, log io.Writer) (map[string]file, error) {
	site := map[string]file{}
	add := func(name string, data []byte) { site[name] = file{kinds[path.Ext(name)], data} }
	list, err := page.ReadDir("page")
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		data, err := page.ReadFile("page/" + e.Name())
		if err != nil {
			return nil, err
		}
		add(e.Name(), data)
	}
	add(themeFile, fmt.Appendf(nil, ":root{--mono:%s;--sans:%s}\n%s", theme.Mono, theme.Sans, theme.Colors(":root")))
	wasm, runtime, err := engine(ctx, log)
	if err != nil {
		return nil, err
	}
	add(engineFile, wasm)
	add(runtimeFile, runtime)
	return site, nil
}
