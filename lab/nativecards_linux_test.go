package lab

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// cardsDrivers are the drivers as docs/guide/cards.md calls them.
var cardsDrivers = map[string]string{deviceRxe: "rdma_rxe", deviceSiw: "siw"}

// difference is what a driver does otherwise, in the words of docs/guide/cards.md.
type difference struct{ driver, cause string }

// knownDifferences returns what the lab knows of the drivers, each with the kernels that it is known of: "" for all.
func knownDifferences() map[difference][]string {
	all := map[difference][]string{}
	for device, driver := range cardsDrivers {
		add := func(cause, kernel string) {
			d := difference{driver, cause}
			if !slices.Contains(all[d], kernel) {
				all[d] = append(all[d], kernel)
			}
		}
		for _, k := range knownOf[device] {
			add(k.cause, k.kernel)
		}
		if h := hurtOf[device]; h.cause != "" {
			add(h.cause, "")
		}
		if s := stallOf[device]; s.cause != "" {
			add(s.cause, "")
		}
	}
	return all
}

// listedDifferences reads the differences of drivers that cards.md has, each with its kernels and its remedy.
func listedDifferences(t *testing.T, text string) (kernels map[difference]string, remedies map[difference]string) {
	t.Helper()
	_, table, _ := strings.Cut(text, "| driver | difference | remedy |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	kernels, remedies = map[difference]string{}, map[difference]string{}
	for line := range strings.Lines(table + "\n") {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 3 {
			t.Fatalf("got %d cells, want driver, difference and remedy: %s", len(cells), line)
		}
		driver, kernel, _ := strings.Cut(cells[0], ", Linux ")
		d := difference{driver, cells[1]}
		if _, ok := kernels[d]; ok {
			t.Errorf("%s: %q stands there twice", driver, d.cause)
		}
		kernels[d], remedies[d] = kernel, strings.TrimSpace(cells[2])
	}
	return kernels, remedies
}

// TestCardsHasWhatIsKnown: the guide tells of each difference that the lab expects of a driver, in the same words, of the same
// kernels, and with a remedy. It has more than these, since provider/native makes up for some.
func TestCardsHasWhatIsKnown(t *testing.T) {
	const name = "../docs/guide/cards.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	kernels, remedies := listedDifferences(t, string(text))
	known := knownDifferences()
	for _, d := range slices.SortedFunc(maps.Keys(known), func(a, b difference) int {
		return strings.Compare(a.driver+a.cause, b.driver+b.cause)
	}) {
		of := known[d]
		slices.Sort(of)
		want := strings.Join(of, " and ")
		if of[0] == "" { // of all kernels, and so of each
			want = ""
		}
		switch got, ok := kernels[d]; {
		case !ok:
			t.Errorf("%s has no row of %s with the difference %q", name, d.driver, d.cause)
		case got != want:
			t.Errorf("%s: %s: %q is of Linux %q there, and of %q in nativeknown_linux_test.go; \"\" is all", name, d.driver, d.cause, got, want)
		}
	}
	for d, remedy := range remedies {
		if remedy == "" {
			t.Errorf("%s: %s: %q has no remedy", name, d.driver, d.cause)
		}
	}
}
