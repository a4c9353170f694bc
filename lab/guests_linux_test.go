package lab

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// Two guests reach each other. When one of them loses its power, the lab notices, and boots it again.
func TestTwoGuests(t *testing.T) {
	needLab(t)
	ctx := within(t, 2*bootPatience+patience)
	l := ownLab(ctx, t, Config{MTU: 1500, Guests: 2})
	a, b := l.Guest(0), l.Guest(1)
	s := scenario{family: labFamily, program: "ibv_rc_pingpong", server: "kernel", mtu: l.MTU(), variant: "between two guests", on: l, foreign: true}
	s.run(t, func(ctx context.Context, t *testing.T, _ *Lab) {
		port := nextPort()
		argv := func(g *Guest) []string {
			return []string{"ibv_rc_pingpong", "-d", g.Device, "-g", strconv.Itoa(g.GIDIndex(false)), "-p", port, "-n", "10"}
		}
		server, err := a.Start(ctx, argv(a)...)
		if err == nil {
			err = listening(ctx, a, port, server)
		}
		if err != nil {
			notShown(t, err)
		}
		client, err := b.Start(ctx, append(argv(b), a.Addr(false).String())...)
		if err == nil {
			_, err = ends(server, client)
		}
		if err != nil {
			notShown(t, err)
		}
	})

	recordTest(t, labFamily, resultRow{program: "power failure", mtu: l.MTU()}, "one guest of two is killed, missed, and boots again")
	sleeper := start(ctx, t, b, "sh", "-c", "echo sleeps; exec sleep 1000")
	if err := sleeper.AwaitOutput(ctx, "sleeps"); err != nil {
		t.Fatal(err)
	}
	b.Kill()
	if res, err := sleeper.Wait(); err == nil {
		t.Errorf("a program in a dead guest ended with %v, want an error", res.Status)
	}
	if _, err := a.Run(ctx, "true"); err != nil {
		t.Errorf("a program in the other guest: got %v, want success", err)
	}
	if err := b.Boot(ctx); err != nil {
		t.Fatal(err)
	}
	// The guest also has Python and pyverbs.
	if out, err := b.Run(ctx, "python3", "-c", "import pyverbs.device as d; print(d.get_device_list()[0].name.decode())"); err != nil || strings.TrimSpace(out) != b.Device {
		notShown(t, fmt.Errorf("pyverbs lists %q, want %s: %v", out, b.Device, err))
	}
}
