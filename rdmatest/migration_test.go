package rdmatest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// alternate gives two connected QPs on ports with two LIDs each the path between the other LIDs, and has both wish for
// migration.
func alternate(t *testing.T, x, y *rdmatest.Endpoint, grh bool) {
	t.Helper()
	for _, e := range []struct{ from, to *rdmatest.Endpoint }{{x, y}, {y, x}} {
		port, err := e.to.Device.QueryPort(1)
		if err != nil {
			t.Fatal(err)
		}
		a := verbs.QPAttr{AltAH: verbs.AHAttr{DLID: port.LID + 1, SrcPathBits: 1}, AltPort: 1, AltTimeout: 8, PathMigState: verbs.MigRearm}
		if grh {
			entry, err := e.to.Device.GID(1, 0)
			if err != nil {
				t.Fatal(err)
			}
			a.AltAH.DGID = entry.GID
		}
		if err := e.from.QP.Modify(&a, verbs.MaskAltPath|verbs.MaskPathMigState); err != nil {
			t.Fatal(err)
		}
	}
}

func migState(t *testing.T, e *rdmatest.Endpoint) (verbs.MigState, uint16) {
	t.Helper()
	a, _, err := e.QP.Query()
	if err != nil {
		t.Fatal(err)
	}
	return a.PathMigState, a.AH.DLID
}

// When the only switch of the primary path fails, and the subnet manager with it, both ends go on by the alternate path.
func TestPathMigration(t *testing.T) {
	for _, grh := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			net, between, manager, b := spines(t, rdmatest.Config{LMC: 1})
			a := net.Device() // at the manager's switch: LIDs are spread so that the primary path is by one switch both ways
			if attr, err := a.Query(); err != nil || attr.DeviceCapFlags&verbs.DeviceAutoPathMig == 0 {
				t.Errorf("device flags %v, %v; want AUTO_PATH_MIG", attr.DeviceCapFlags, err)
			}
			o := brief
			o.GRH = grh
			x, y := rdmatest.Connect(t, a, b, o)
			alternate(t, x, y, grh)
			if s, _ := migState(t, x); s != verbs.MigRearm {
				t.Errorf("before a packet of the peer's the state is %v, want REARM", s)
			}
			if ends(x, y) != verbs.WCSuccess || ends(y, x) != verbs.WCSuccess {
				t.Error("WRITEs fail before anything has happened")
			}
			for _, e := range []*rdmatest.Endpoint{x, y} {
				if s, _ := migState(t, e); s != verbs.MigArmed {
					t.Errorf("after packets both ways the state is %v, want ARMED", s)
				}
			}
			net.StopManager(manager) // nobody finds another way
			_, before := migState(t, x)
			switchOf(t, between, x, y).Fail()
			if st := ends(x, y); st != verbs.WCSuccess {
				t.Errorf("GRH %v: without the primary path a WRITE ends with %v", grh, st)
			}
			event(t, a, verbs.EventPathMig)
			event(t, b, verbs.EventPathMig)
			for _, e := range []*rdmatest.Endpoint{x, y} {
				if s, _ := migState(t, e); s != verbs.MigMigrated {
					t.Errorf("after the migration the state is %v, want MIGRATED", s)
				}
			}
			if _, lid := migState(t, x); lid != before+1 {
				t.Errorf("the path leads to LID %d, want the alternate one %d", lid, before+1)
			}
			if ends(y, x) != verbs.WCSuccess {
				t.Error("the other end does not send by the alternate path")
			}
		})
	}
}

// switchOf returns the switch that carries packets from x to y: without it a WRITE would end with RETRY_EXC_ERR.
func switchOf(t *testing.T, between []*rdmatest.Switch, x, y *rdmatest.Endpoint) *rdmatest.Switch {
	t.Helper()
	was := make([]uint64, len(between))
	for i, s := range between {
		was[i] = s.Sent()
	}
	if ends(x, y) != verbs.WCSuccess {
		t.Fatal("a WRITE fails")
	}
	for i, s := range between {
		if s.Sent() > was[i] {
			return s
		}
	}
	t.Fatal("no switch has sent anything")
	return nil
}

// The program may migrate by itself, and gets reasons where it cannot.
func TestPathMigrationByProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, a, b := spines(t, rdmatest.Config{LMC: 1})
		x, y := rdmatest.Connect(t, a, b, brief)
		for _, c := range []struct {
			name string
			attr verbs.QPAttr
			mask verbs.QPAttrMask
		}{
			{"REARM without a path", verbs.QPAttr{PathMigState: verbs.MigRearm}, verbs.MaskPathMigState},
			{"ARMED", verbs.QPAttr{PathMigState: verbs.MigArmed}, verbs.MaskPathMigState},
			{"a port that there is not", verbs.QPAttr{AltAH: verbs.AHAttr{DLID: 3}, AltPort: 2}, verbs.MaskAltPath},
			{"a P_Key that there is not", verbs.QPAttr{AltAH: verbs.AHAttr{DLID: 3}, AltPort: 1, AltPKeyIndex: 5}, verbs.MaskAltPath},
		} {
			if err := x.QP.Modify(&c.attr, c.mask); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", c.name, err)
			}
		}
		alternate(t, x, y, false)
		if ends(x, y) != verbs.WCSuccess || ends(y, x) != verbs.WCSuccess {
			t.Fatal("WRITEs fail")
		}
		if err := x.QP.Modify(&verbs.QPAttr{PathMigState: verbs.MigMigrated}, verbs.MaskPathMigState); err != nil {
			t.Fatal(err)
		}
		if ends(x, y) != verbs.WCSuccess {
			t.Error("a WRITE by the alternate path fails")
		}
		event(t, a, verbs.EventPathMig)
		event(t, b, verbs.EventPathMig)
	})
}

// An end whose peer does not wish for migration is never armed, and fails as without.
func TestPathMigrationAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, _, a, b := spines(t, rdmatest.Config{LMC: 1})
		x, y := rdmatest.Connect(t, a, b, brief)
		pb, _ := b.QueryPort(1)
		alone := verbs.QPAttr{AltAH: verbs.AHAttr{DLID: pb.LID + 1, SrcPathBits: 1}, AltPort: 1, AltTimeout: 8, PathMigState: verbs.MigRearm}
		if err := x.QP.Modify(&alone, verbs.MaskAltPath|verbs.MaskPathMigState); err != nil {
			t.Fatal(err)
		}
		if ends(x, y) != verbs.WCSuccess || ends(y, x) != verbs.WCSuccess {
			t.Error("WRITEs fail")
		}
		if s, _ := migState(t, x); s != verbs.MigRearm {
			t.Errorf("the state is %v, want REARM: the peer has not said that it would migrate", s)
		}
		net.SetCable(b, false)
		if st := ends(x, y); st != verbs.WCRetryExceeded {
			t.Errorf("a WRITE to a port that is down ends with %v, want RETRY_EXC_ERR", st)
		}
		if s, lid := migState(t, x); s != verbs.MigRearm || lid != pb.LID {
			t.Errorf("the state is %v, the path leads to LID %d; want REARM and %d", s, lid, pb.LID)
		}
	})
}

// An end whose alternate path is not the one that its peer has taken does not follow, and its program is told once, until
// it wishes for migration anew.
func TestPathMigrationRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, a, b := spines(t, rdmatest.Config{LMC: 1})
		x, y := rdmatest.Connect(t, a, b, brief)
		alternate(t, x, y, false)
		other := verbs.QPAttr{AltPort: 1, AltTimeout: 8, PathMigState: verbs.MigRearm}
		if s, lid := migState(t, y); s != verbs.MigRearm {
			t.Fatalf("the state is %v, want REARM", s)
		} else {
			other.AltAH = verbs.AHAttr{DLID: lid} // the primary path
		}
		if err := y.QP.Modify(&other, verbs.MaskAltPath|verbs.MaskPathMigState); err != nil {
			t.Fatal(err)
		}
		if ends(x, y) != verbs.WCSuccess || ends(y, x) != verbs.WCSuccess {
			t.Fatal("WRITEs fail")
		}
		if err := x.QP.Modify(&verbs.QPAttr{PathMigState: verbs.MigMigrated}, verbs.MaskPathMigState); err != nil {
			t.Fatal(err)
		}
		if st := ends(x, y); st != verbs.WCRetryExceeded {
			t.Errorf("a WRITE by a path that the peer does not know ends with %v, want RETRY_EXC_ERR", st)
		}
		event(t, b, verbs.EventPathMigErr)
		if s, _ := migState(t, y); s != verbs.MigArmed {
			t.Errorf("the state is %v, want ARMED still", s)
		}
		if err := y.QP.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if e, err := b.NextEvent(ctx); err == nil {
			t.Errorf("then event %v, want none: the program has been told", e.Type)
		}
	})
}
