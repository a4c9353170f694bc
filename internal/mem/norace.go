//go:build !race

package mem

func tellRead([]byte)  {}
func tellWrite([]byte) {}
