// Package tables finds what a structure still holds, for tests that nothing is left of what is over. It
// looks for maps, slices, lists and tables of numbers by reflection. So a table that somebody adds is looked
// at too.
package tables

import (
	"container/list"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// maxArray is up to which length the elements of an array are looked at.
const maxArray = 64

// Held returns the length of each map, slice, list and idtable.Table that is not empty, by its path from v,
// which is a pointer. It follows structs, and pointers to structs of v's package and of those in packages, which are
// the ends of import paths. It leaves out what is empty, bytes, and the paths in besides with all below
// them. Nobody may change anything meanwhile.
func Held(v any, packages, besides []string) map[string]int {
	w := &walk{held: map[string]int{}, seen: map[any]bool{}, besides: besides, packages: packages}
	p := reflect.ValueOf(v)
	w.packages = append(slices.Clone(packages), p.Type().Elem().PkgPath())
	w.value(p, "")
	return w.held
}

type walk struct {
	held              map[string]int
	seen              map[any]bool // pointers with their types
	packages, besides []string
}

var listType = reflect.TypeFor[list.List]()

func (w *walk) value(v reflect.Value, path string) {
	if slices.Contains(w.besides, path) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		type place struct {
			at  uintptr
			typ reflect.Type
		}
		at := place{v.Pointer(), v.Type()}
		if !v.IsNil() && !w.seen[at] && w.follows(v.Type().Elem()) {
			w.seen[at] = true
			w.value(v.Elem(), path)
		}
	case reflect.Interface:
		if !v.IsNil() {
			w.value(v.Elem(), path)
		}
	case reflect.Struct:
		w.structure(v, path)
	case reflect.Map:
		w.found(v.Len(), path)
		for it := v.MapRange(); it.Next(); {
			w.value(it.Value(), path+"[]")
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		w.found(v.Len(), path)
		w.elements(v, path)
	case reflect.Array:
		if v.Len() <= maxArray {
			w.elements(v, path)
		}
	}
}

func (w *walk) elements(v reflect.Value, path string) {
	for i := range v.Len() {
		w.value(v.Index(i), path+"[]")
	}
}

func (w *walk) structure(v reflect.Value, path string) {
	t := v.Type()
	switch {
	case t == listType:
		w.found(int(v.FieldByName("len").Int()), path)
		return
	case t.PkgPath() == "sync/atomic" && strings.HasPrefix(t.Name(), "Pointer[") && v.CanAddr():
		w.value(reflect.NewAt(t, v.Addr().UnsafePointer()).MethodByName("Load").Call(nil)[0], path)
		return
	case !strings.Contains(t.PkgPath(), "/"): // the standard library's
		return
	case strings.HasSuffix(t.PkgPath(), "internal/idtable") && strings.HasPrefix(t.Name(), "Table["):
		w.found(int(v.FieldByName("used").Int()), path) // its blocks are too long to be looked at
	}
	for i := range t.NumField() {
		name := t.Field(i).Name
		if path != "" {
			name = path + "." + name
		}
		w.value(v.Field(i), name)
	}
}

func (w *walk) found(n int, path string) {
	if n > 0 {
		w.held[path] += n
	}
}

// follows reports whether what pointers to a type lead to is looked at.
func (w *walk) follows(t reflect.Type) bool {
	if t.Kind() == reflect.Slice {
		return true
	}
	return t.Kind() == reflect.Struct && slices.ContainsFunc(w.packages, func(p string) bool { return strings.HasSuffix(t.PkgPath(), p) })
}

// String returns what is held, in order, for messages.
func String(held map[string]int) string {
	var parts []string
	for path, n := range held {
		parts = append(parts, fmt.Sprintf("%s: %d", path, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
