package benchdata

// Charts are what tests have recorded over time.
type Charts struct {
	Charts []Chart `json:"charts"`
}

// Chart is a picture: panels in rows, and over each column its title.
type Chart struct {
	Name    string    `json:"name"` // of the file, without its ending
	Columns []string  `json:"columns"`
	X       string    `json:"x"` // the axis that all panels share, with its unit
	Rows    [][]Panel `json:"rows"`
}

// Panel is lines over the same axes.
type Panel struct {
	Y     string  `json:"y"`   // the axis, with its unit
	Max   float64 `json:"max"` // where it ends; 0 leaves that to the data
	Lines []Line  `json:"lines"`
}

// Line is values at times.
type Line struct {
	Title string    `json:"title,omitzero"`
	X     []float64 `json:"x"`
	Y     []float64 `json:"y"`
}

// Add appends a point.
func (l *Line) Add(x, y float64) { l.X, l.Y = append(l.X, x), append(l.Y, y) }
