package theme

import (
	"math"
	"strconv"
	"strings"
	"testing"
)

// luminance is that of WCAG.
func luminance(t *testing.T, color string) float64 {
	if len(color) == 4 {
		color = "#" + strings.Repeat(color[1:2], 2) + strings.Repeat(color[2:3], 2) + strings.Repeat(color[3:4], 2)
	}
	n, err := strconv.ParseUint(color[1:], 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i, weight := range []float64{0.0722, 0.7152, 0.2126} {
		c := float64(n>>(8*i)&0xff) / 255
		if c <= 0.03928 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

func TestContrast(t *testing.T) {
	for name, set := range map[string]string{"light": light, "dark": dark} {
		colors := map[string]string{}
		for def := range strings.SplitSeq(set, ";") {
			key, value, _ := strings.Cut(def, ":")
			colors[key] = value
		}
		for _, text := range []string{"--ink", "--faint", "--data", "--answer", "--trouble", "--wait"} {
			for _, ground := range []string{"--ground", "--raised"} {
				a, b := luminance(t, colors[text]), luminance(t, colors[ground])
				if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 4.5 {
					t.Errorf("%s: %s on %s has a contrast of %.2f", name, text, ground, ratio)
				}
			}
		}
	}
}
