//go:build adverb_lab

package lab

import (
	"context"
	_ "embed"
	"io"
)

// make wasm writes these two.
var (
	//go:embed built/engine.wasm.gz
	builtEngine []byte
	//go:embed built/wasm_exec.js
	builtRuntime []byte
)

// engine returns the compiled engine and Go's part of it.
func engine(context.Context, io.Writer) (wasm, runtime []byte, err error) {
	return builtEngine, builtRuntime, nil
}
