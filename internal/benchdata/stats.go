package benchdata

import "slices"

// Spread is the middle and the ends of some values. With N of 0 it says nothing.
type Spread struct {
	N                int
	Median, Min, Max float64
}

// NewSpread returns the spread of values, which stay as they are. The median of an even number of
// values is the mean of the two in the middle.
func NewSpread(values []float64) Spread {
	n := len(values)
	if n == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	return Spread{N: n, Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Min: sorted[0], Max: sorted[n-1]}
}

// Ratios returns the spread of s ÷ of, each taken within one round: machines drift between rounds, and
// what is compared drifts with them. A round in which either failed has no ratio.
func (s *Series) Ratios(of *Series) Spread {
	var ratios []float64
	for i := range min(len(s.Cells), len(of.Cells)) {
		a, b := &s.Cells[i], &of.Cells[i]
		if a.Failed == "" && b.Failed == "" && b.Value > 0 {
			ratios = append(ratios, a.Value/b.Value)
		}
	}
	return NewSpread(ratios)
}
