//go:build js && wasm

// Command wasm is the stage for a page: package stage, compiled to WebAssembly. It sets the global adverbStage, whose
// functions take strings and numbers and return JSON. An error is an object with the one field error.
//
//	lessons()                 the names of the lessons, each with its settings
//	play(fragment)            begins a play, or replays it; returns the view
//	step(), undo()            one step on, one step or decision back; both return the view
//	decide(action, packet)    a decision; returns the view
//	packet(n)                 a packet, field by field
//	log()                     all that has happened
//	explain(words)            what adverb explain says
//	version()                 the engine's version, see stage.Version
package main

import (
	"encoding/json"
	"strings"
	"syscall/js"

	"github.com/adverb-rdma/adverb/internal/meaning"
	"github.com/adverb-rdma/adverb/internal/stage"
)

// now is the stage that the page shows, or nil.
var now *stage.Stage

func main() {
	exports := map[string]any{}
	for name, f := range map[string]func(args []js.Value) (any, error){
		"lessons": lessons, "play": play, "step": step, "undo": undo, "decide": decide, "packet": packet, "log": log, "explain": explain, "version": version,
	} {
		exports[name] = js.FuncOf(func(_ js.Value, args []js.Value) any {
			v, err := f(args)
			if err != nil {
				v = map[string]string{"error": err.Error()}
			}
			b, err := json.Marshal(v)
			if err != nil {
				return `{"error":"the answer is no JSON"}`
			}
			return string(b)
		})
	}
	js.Global().Set("adverbStage", js.ValueOf(exports))
	if ready := js.Global().Get("adverbReady"); ready.Type() == js.TypeFunction {
		ready.Invoke()
	}
	select {}
}

func lessons([]js.Value) (any, error) {
	list := []stage.Settings{}
	for _, name := range stage.Lessons() {
		s, err := stage.Defaults(name)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func play(args []js.Value) (any, error) {
	p, err := stage.Decode(text(args, 0))
	if err != nil {
		return nil, err
	}
	return show(p)
}

// show puts a play on, in place of the one before. After an error that one stays.
func show(p stage.Play) (any, error) {
	s, err := stage.Replay(p)
	if err != nil {
		return nil, err
	}
	if now != nil {
		if err := now.Close(); err != nil {
			return nil, err
		}
	}
	now = s
	return now.View(), nil
}

func step([]js.Value) (any, error) {
	if now == nil {
		return nil, errNothing
	}
	now.Step()
	return now.View(), nil
}

func undo([]js.Value) (any, error) {
	if now == nil {
		return nil, errNothing
	}
	return show(now.Play().Before())
}

func decide(args []js.Value) (any, error) {
	if now == nil {
		return nil, errNothing
	}
	a := text(args, 0)
	if len(a) != 1 {
		return nil, errAction
	}
	if err := now.Decide(stage.Action(a[0]), number(args, 1)); err != nil {
		return nil, err
	}
	return now.View(), nil
}

func packet(args []js.Value) (any, error) {
	if now == nil {
		return nil, errNothing
	}
	return now.Packet(number(args, 0))
}

func log([]js.Value) (any, error) {
	if now == nil {
		return nil, errNothing
	}
	return now.Log(), nil
}

// explanation is what the page shows of an entry of adverb explain.
type explanation struct {
	Name   string   `json:"name"`
	Brief  string   `json:"brief"`
	More   string   `json:"more,omitempty"`
	Causes []string `json:"causes,omitempty"`
	Checks []string `json:"checks,omitempty"`
}

func explain(args []js.Value) (any, error) {
	list := []explanation{}
	for _, f := range meaning.Explain(strings.TrimSpace(text(args, 0))) {
		e := f.Entry
		list = append(list, explanation{e.Name, e.Brief, e.More, e.Causes, e.Checks})
	}
	return list, nil
}

func version([]js.Value) (any, error) { return stage.Version(), nil }

type problem string

func (p problem) Error() string { return string(p) }

const (
	errNothing problem = "no lesson is being played: choose one"
	errAction  problem = "an action is one letter"
)

func text(args []js.Value, i int) string {
	if i < len(args) && args[i].Type() == js.TypeString {
		return args[i].String()
	}
	return ""
}

func number(args []js.Value, i int) int {
	if i < len(args) && args[i].Type() == js.TypeNumber {
		return args[i].Int()
	}
	return 0
}
