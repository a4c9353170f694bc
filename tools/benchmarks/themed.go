package main

import (
	"bytes"
	"fmt"
	"image/color"
	"os"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/adverb-rdma/adverb/internal/theme"
)

// Pictures follow the reader's light or dark theme: the colours that the plotting library writes become names of the
// theme's, or of series'.

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
}

// fonts are as wide as Liberation Sans, by which the library places texts.
const fonts = "Liberation Sans,Arial,Helvetica,sans-serif"

// darkColors are colors on a dark ground.
var darkColors = []color.Color{
	color.RGBA{0x5a, 0xa5, 0xf0, 0xff}, // ours
	color.RGBA{0x5b, 0x63, 0x6d, 0xff},
	color.RGBA{0xe0, 0x8e, 0x2b, 0xff},
	color.RGBA{0x4f, 0x9d, 0x69, 0xff},
	color.RGBA{0xb4, 0x88, 0xca, 0xff},
	color.RGBA{0xd9, 0x6b, 0x6b, 0xff},
	color.RGBA{0xa9, 0xb1, 0xba, 0xff},
	color.RGBA{0x36, 0xb3, 0xb8, 0xff},
	color.RGBA{0xb0, 0x90, 0x66, 0xff},
	color.RGBA{0xb8, 0xb8, 0x3c, 0xff},
	color.RGBA{0xe8, 0xa0, 0xc8, 0xff},
}

// gridColor is that of the library's grids.
var gridColor = color.Gray{0x80}

func hex(c color.Color) string {
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("#%02X%02X%02X", r>>8, g>>8, b>>8)
}

// names has the name of each colour that pictures have.
var names = func() map[string]string {
	m := map[string]string{hex(color.White): "ground", hex(color.Black): "ink", hex(gridColor): "line"}
	for i, c := range colors {
		m[hex(c)] = seriesName(i)
	}
	return m
}()

func seriesName(i int) string { return fmt.Sprintf("series%d", i+1) }

// style defines the colours of series beside those of the theme.
var style = func() string {
	series := func(list []color.Color) string {
		var s []string
		for i, c := range list {
			s = append(s, fmt.Sprintf("--%s:%s", seriesName(i), strings.ToLower(hex(c))))
		}
		return "svg{" + strings.Join(s, ";") + "}"
	}
	return "<style>\n" + theme.Colors("svg") + series(colors) + "\n@media (prefers-color-scheme:dark){" + series(darkColors) + "}\n@media print{" + series(colors) + "}\n" +
		"text{fill:var(--ink)}\n</style>\n"
}()

var (
	colorPattern  = regexp.MustCompile(`(fill|stroke):(#[0-9A-F]{6})`)
	familyPattern = regexp.MustCompile(`font-family:[^;]*;`)
)

// themed gives a picture the colours of the theme.
func themed(svg []byte) ([]byte, error) {
	unknown := ""
	svg = colorPattern.ReplaceAllFunc(svg, func(b []byte) []byte {
		m := colorPattern.FindSubmatch(b)
		name, ok := names[string(m[2])]
		if !ok {
			unknown = string(m[2])
		}
		return fmt.Appendf(nil, "%s:var(--%s)", m[1], name)
	})
	if unknown != "" {
		return nil, fmt.Errorf("the picture has the colour %s, which has no name", unknown)
	}
	svg = familyPattern.ReplaceAll(svg, []byte("font-family:"+fonts+";"))
	head := bytes.IndexByte(svg[max(0, bytes.Index(svg, []byte("<svg"))):], '>')
	if head < 0 {
		return nil, fmt.Errorf("the picture has no beginning")
	}
	at := bytes.Index(svg, []byte("<svg")) + head + 1
	return bytes.Join([][]byte{svg[:at], []byte("\n" + style), bytes.TrimPrefix(svg[at:], []byte("\n"))}, nil), nil
}

// writeSVG writes a canvas to a file.
func writeSVG(c *vgsvg.Canvas, file string) error {
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	svg, err := themed(b.Bytes())
	if err != nil {
		return err
	}
	return os.WriteFile(file, svg, 0o666)
}
