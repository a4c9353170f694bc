package benchdata

import "fmt"

// Format writes a value in a unit that people read, such as "1.31 M/s", "8.40 GB/s" and "2.9 µs".
func (u Unit) Format(v float64) string {
	number, suffix := u.scale(v, v)
	return number + " " + suffix
}

// FormatRange writes the ends of a spread, in the unit that Format has for its median.
func (u Unit) FormatRange(s Spread) string {
	low, _ := u.scale(s.Min, s.Median)
	high, _ := u.scale(s.Max, s.Median)
	return low + "–" + high
}

// scale writes v in the unit that suits like.
func (u Unit) scale(v, like float64) (number, suffix string) {
	type step struct {
		from, unit float64
		suffix     string
	}
	steps := map[Unit][]step{
		PerSecond:      {{1e6, 1e6, "M/s"}, {1e3, 1e3, "k/s"}, {0, 1, "/s"}},
		BytesPerSecond: {{1e9, 1e9, "GB/s"}, {1e6, 1e6, "MB/s"}, {0, 1e3, "kB/s"}},
		Seconds:        {{1e-3, 1e-3, "ms"}, {0, 1e-6, "µs"}},
	}[u]
	for _, s := range steps {
		if like >= s.from {
			return significant(v / s.unit), s.suffix
		}
	}
	return fmt.Sprint(v), string(u)
}

// significant writes three digits, or all of those before the point.
func significant(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// ProfileText says whether adverb was built with a profile.
func (h *Host) ProfileText() string {
	if h.Profile {
		return "built with a profile (-pgo)"
	}
	return "built without a profile"
}

// CoresText writes how many cores the client and the server kept busy, such as "1.00 + 0.25", or nothing.
func (s *Series) CoresText() string {
	client, server, ok := s.Cores()
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.2f + %.2f", client, server)
}

// FormatRatio writes a spread of ratios, such as "0.85 (0.83–0.91)".
func FormatRatio(s Spread) string {
	if s.N == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%s–%s)", significant(s.Median), significant(s.Min), significant(s.Max))
}
