package stage

import (
	"crypto/sha256"
	"fmt"
	"sync"
)

// versionPlays are played in each lesson, to tell engines apart.
var versionPlays = []string{"", "&s=3&loss=20&jitter=40"}

const (
	versionSteps = 400 // of each play
	versionBytes = 4
)

// Version names the engine by what it does: two that play these lessons alike, packet by packet, have the same version, and
// those in which a link may show something else have different ones, with few exceptions.
var Version = sync.OnceValue(computeVersion)

func computeVersion() string {
	h := sha256.New()
	for _, name := range Lessons() {
		for _, more := range versionPlays {
			p, err := Decode("l=" + name + more)
			if err != nil {
				panic(err) // a defect of versionPlays
			}
			s, err := New(p.Settings)
			if err != nil {
				fmt.Fprintln(h, err)
				continue
			}
			for s.play.Steps < versionSteps && s.Step() {
			}
			for _, e := range s.log {
				fmt.Fprintln(h, e.Step, e.At, e.Kind, e.Who, e.Packet, e.ID, e.Status)
			}
			for _, p := range s.packets {
				fmt.Fprintf(h, "%d %d %d %x\n", p.N, p.Sent, p.Ended, p.data)
			}
			s.Close()
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:versionBytes])
}
