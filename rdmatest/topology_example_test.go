package rdmatest_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// One QP fills four equal paths: it sends from four UDP source ports, by which the fabric chooses.
func ExampleNetwork_Paths() {
	t := new(testing.T) // of the test function
	synctest.Test(t, func(t *testing.T) {
		const rate, size, n = 1e9, 1 << 20, 16 // bytes in a second, bytes, WRITEs
		net := rdmatest.New(t, rdmatest.Config{Seed: 1})
		a, b := net.Device(), net.Device()
		var ports []*rdmatest.Port // from a to b
		for _, way := range [][2]*verbs.Device{{b, a}, {a, b}} {
			ports = nil
			var paths [][]*rdmatest.Port
			for range 4 {
				port := net.Port(rdmatest.PortConfig{Rate: rate, Delay: 5 * time.Microsecond})
				ports, paths = append(ports, port), append(paths, []*rdmatest.Port{port})
			}
			net.Paths(way[0], way[1], rdmatest.ByPort, paths...)
		}
		for _, sources := range []int{1, 4} {
			x, y := rdmatest.Connect(t, a, b)
			for _, e := range []*rdmatest.Endpoint{x, y} {
				if err := e.QP.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: true, Accept: true, Paths: sources}); err != nil {
					t.Fatal(err)
				}
			}
			src, dst := x.MR(size), y.MR(size)
			write := verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)}
			x.Send(write) // meanwhile the two ends learn each other's capabilities
			x.Done()
			for _, port := range ports {
				port.ResetStats()
			}
			start := time.Now()
			for range n {
				x.Send(write)
			}
			for range n {
				x.Done()
			}
			took := time.Since(start).Seconds()
			fmt.Printf("source ports: %d, goodput: %.0f times a path's rate, filled:", sources, n*size/took/rate)
			for i, port := range ports {
				if float64(port.Stats().Bytes)/took > .8*rate {
					fmt.Print(" path ", i)
				}
			}
			fmt.Println()
		}
	})
	// Output:
	// source ports: 1, goodput: 1 times a path's rate, filled: path 3
	// source ports: 4, goodput: 4 times a path's rate, filled: path 0 path 1 path 2 path 3
}

// Four devices write to a fifth at once, through one port of a switch that marks packets while others wait. With DCQCN
// nothing is lost, the queue stays short, and all get the same.
func ExampleNetwork_Route_incast() {
	t := new(testing.T) // of the test function
	synctest.Test(t, func(t *testing.T) {
		const size, n, settle, measured = 1 << 20, 16, 20 * time.Millisecond, 20 * time.Millisecond
		cable := rdmatest.PortConfig{Rate: 125e7, Delay: 5 * time.Microsecond} // 10 Gbit/s
		marks := cable
		marks.Buffer, marks.MarkFrom, marks.MarkTo, marks.MarkMost = 8<<20, 5<<10, 80<<10, .02

		net := rdmatest.New(t, rdmatest.Config{Seed: 1})
		receiver := net.Device()
		down, back := net.Port(marks), net.Port(cable)
		var senders []*rdmatest.Endpoint
		var ups []*rdmatest.Port
		for range 4 {
			sender, up := net.Device(), net.Port(cable)
			net.Route(sender, receiver, up, down)
			net.Route(receiver, sender, back, net.Port(cable))
			x, y := rdmatest.Connect(t, sender, receiver)
			if err := x.QP.SetCongestionControl(verbs.CongestionDCQCN); err != nil {
				t.Fatal(err)
			}
			src, dst := x.MR(size), y.MR(size)
			for range n {
				x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
			}
			senders, ups = append(senders, x), append(ups, up)
		}
		sample := func() (rate, fairness float64, switched rdmatest.PortStats) {
			synctest.Wait() // all that happens at this time has happened
			var squares float64
			for _, up := range ups {
				r := float64(up.ResetStats().Bytes) / measured.Seconds()
				rate, squares = rate+r, squares+r*r
			}
			return rate, rate * rate / (squares * float64(len(ups))), down.ResetStats() // Jain's index
		}
		time.Sleep(settle)
		_, _, first := sample()
		time.Sleep(measured)
		rate, fairness, then := sample()
		fmt.Println("over 80 % of the port's rate is used:", rate > .8*float64(cable.Rate))
		fmt.Println("fairness above 0.95:", fairness > .95)
		fmt.Println("queue below 256 KiB:", then.Longest < 256<<10)
		fmt.Println("packets marked:", then.Marked > 0)
		for _, x := range senders {
			for range n {
				x.Done() // which fails the test unless it is a success
			}
		}
		fmt.Println("packets lost:", first.Lost+then.Lost+down.Stats().Lost)
	})
	// Output:
	// over 80 % of the port's rate is used: true
	// fairness above 0.95: true
	// queue below 256 KiB: true
	// packets marked: true
	// packets lost: 0
}

// A mouse among elephants: how long a WRITE of 8 bytes takes while two others fill the port. With DCQCN they leave the
// queue short.
func ExampleNetwork_Route_mice() {
	t := new(testing.T) // of the test function
	for _, control := range []verbs.CongestionControl{verbs.CongestionWindow, verbs.CongestionDCQCN} {
		synctest.Test(t, func(t *testing.T) {
			const size, n = 1 << 20, 16
			cable := rdmatest.PortConfig{Rate: 125e7, Delay: 5 * time.Microsecond} // 10 Gbit/s
			marks := cable
			marks.MarkFrom, marks.MarkTo, marks.MarkMost = 5<<10, 80<<10, .02
			net := rdmatest.New(t, rdmatest.Config{Seed: 1})
			receiver, down := net.Device(), net.Port(marks)
			connect := func() (x *rdmatest.Endpoint, write verbs.SendWR) {
				sender := net.Device()
				net.Route(sender, receiver, net.Port(cable), down)
				net.Route(receiver, sender, net.Port(cable))
				x, y := rdmatest.Connect(t, sender, receiver)
				src, dst := x.MR(size), y.MR(size)
				return x, verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)}
			}
			mouse, small := connect()
			small.SGList[0].Length = 8
			once := func() time.Duration {
				start := time.Now()
				mouse.Send(small)
				mouse.Done()
				return time.Since(start)
			}
			idle := once()
			for range 2 {
				x, write := connect()
				if err := x.QP.SetCongestionControl(control); err != nil {
					t.Fatal(err)
				}
				for range n {
					x.Send(write)
				}
			}
			time.Sleep(10 * time.Millisecond)
			var took []time.Duration
			for range 5 {
				took = append(took, once())
			}
			slices.Sort(took)
			fmt.Printf("%v: over 10 times as long as on the idle network: %v\n", control, took[2] > 10*idle)
		})
	}
	// Output:
	// window: over 10 times as long as on the idle network: true
	// dcqcn: over 10 times as long as on the idle network: false
}

// A permutation: each of four devices writes to the next one, over four paths that all share. Where switches choose by a
// hash, some senders share a path while another is empty. Where they spray packets, all senders get about the whole rate.
func ExampleNetwork_Paths_permutation() {
	t := new(testing.T) // of the test function
	for _, how := range []rdmatest.Spread{rdmatest.ByHash, rdmatest.ByPacket} {
		synctest.Test(t, func(t *testing.T) {
			const rate, size, n = 1e9, 1 << 20, 8
			cable := rdmatest.PortConfig{Rate: rate, Delay: 5 * time.Microsecond}
			net := rdmatest.New(t, rdmatest.Config{Seed: 1})
			var devices []*verbs.Device
			var ups, middle, downs []*rdmatest.Port
			for range 4 {
				devices = append(devices, net.Device())
				ups, middle, downs = append(ups, net.Port(cable)), append(middle, net.Port(cable)), append(downs, net.Port(cable))
			}
			var senders []*rdmatest.Endpoint
			for i, from := range devices {
				j := (i + 1) % len(devices)
				var forth, back [][]*rdmatest.Port
				for _, port := range middle {
					forth = append(forth, []*rdmatest.Port{ups[i], port, downs[j]})
					back = append(back, []*rdmatest.Port{ups[j], port, downs[i]})
				}
				net.Paths(from, devices[j], how, forth...)
				net.Paths(devices[j], from, how, back...)
				x, y := rdmatest.Connect(t, from, devices[j])
				for _, e := range []*rdmatest.Endpoint{x, y} {
					if err := e.QP.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: true, Accept: true}); err != nil {
						t.Fatal(err)
					}
				}
				src, dst := x.MR(size), y.MR(size)
				for range n {
					x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
				}
				senders = append(senders, x)
			}
			time.Sleep(3 * time.Millisecond)
			for _, up := range ups {
				up.ResetStats()
			}
			time.Sleep(4 * time.Millisecond)
			synctest.Wait() // all that happens at this time has happened
			least := 1.0
			for _, up := range ups {
				least = min(least, float64(up.Stats().Bytes)/.004/rate)
			}
			fmt.Printf("by hash: %-5v  all have over half of the rate: %v\n", how == rdmatest.ByHash, least > .5)
			for _, x := range senders {
				for range n {
					x.Done() // which fails the test unless it is a success
				}
			}
		})
	}
	// Output:
	// by hash: true   all have over half of the rate: false
	// by hash: false  all have over half of the rate: true
}

// A link goes down and up again, three times. Nothing fails: lost packets are sent again.
func ExamplePort_SetDown() {
	t := new(testing.T) // of the test function
	synctest.Test(t, func(t *testing.T) {
		const rate, size, n = 1e9, 2 << 20, 64
		net := rdmatest.New(t, rdmatest.Config{Seed: 1})
		a, b := net.Device(), net.Device()
		link := rdmatest.PortConfig{Rate: rate, Delay: 5 * time.Microsecond}
		forth, back := net.Port(link), net.Port(link)
		net.Route(a, b, forth)
		net.Route(b, a, back)
		x, y := rdmatest.Connect(t, a, b)
		src, dst := x.MR(size), y.MR(size)
		for range n {
			x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
		}
		for range 3 {
			for _, down := range []bool{false, true} {
				forth.SetDown(down)
				back.SetDown(down)
				time.Sleep(20 * time.Millisecond) // until all is as it stays
				forth.ResetStats()
				time.Sleep(5 * time.Millisecond)
				synctest.Wait() // all that happens at this time has happened
				fmt.Printf("down: %-5v  %.1f of the link's rate is used\n", down, float64(forth.Stats().Bytes)/.005/rate)
			}
		}
		forth.SetDown(false)
		back.SetDown(false)
		for range n {
			x.Done() // which fails the test unless it is a success
		}
		fmt.Println("all WRITEs are complete")
	})
	// Output:
	// down: false  1.0 of the link's rate is used
	// down: true   0.0 of the link's rate is used
	// down: false  1.0 of the link's rate is used
	// down: true   0.0 of the link's rate is used
	// down: false  1.0 of the link's rate is used
	// down: true   0.0 of the link's rate is used
	// all WRITEs are complete
}

// The figures for a plot over time: each sender's rate, the queue and the fairness. The second sender begins later.
func ExamplePort_ResetStats() {
	t := new(testing.T) // of the test function
	synctest.Test(t, func(t *testing.T) {
		const size, n, step = 1 << 20, 64, 2 * time.Millisecond
		cable := rdmatest.PortConfig{Rate: 3e9, Delay: 5 * time.Microsecond} // 24 Gbit/s
		net := rdmatest.New(t, rdmatest.Config{Seed: 1})
		receiver, down := net.Device(), net.Port(cable)
		var ups []*rdmatest.Port
		begin := func() {
			sender, up := net.Device(), net.Port(cable)
			net.Route(sender, receiver, up, down)
			net.Route(receiver, sender, net.Port(cable))
			x, y := rdmatest.Connect(t, sender, receiver)
			src, dst := x.MR(size), y.MR(size)
			for range n {
				x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
			}
			ups = append(ups, up)
		}
		fmt.Println("ms   rates, # is 4 Gbit/s   fairness   queue, MB   lost")
		begin()
		for at := step; at <= 6*step; at += step {
			if at == 4*step {
				begin()
			}
			time.Sleep(step)
			synctest.Wait() // all that happens at this time has happened
			var rates [2]string
			var sum, squares float64
			for i, up := range ups {
				r := float64(up.ResetStats().Bytes) * 8 / step.Seconds() // bits in a second
				rates[i] = strings.Repeat("#", int(math.Round(r/4e9)))
				sum, squares = sum+r, squares+r*r
			}
			fairness := sum * sum / (squares * float64(len(ups))) // Jain's index
			s := down.ResetStats()
			fmt.Printf("%2d   %-10s %-10s   %8.1f   %9.0f   %4d\n", at.Milliseconds(), rates[0], rates[1], fairness, float64(s.Queue)/1e6, s.Lost)
		}
	})
	// Output:
	// ms   rates, # is 4 Gbit/s   fairness   queue, MB   lost
	//  2   ######                       1.0           0      0
	//  4   ######                       1.0           0      0
	//  6   ######                       1.0           0      0
	//  8   ####       ####              1.0           2      0
	// 10   ###        ###               1.0           2      0
	// 12   ###        ###               1.0           2      0
}

// One of four links loses a tenth of its packets. A QP that has several paths leaves the link.
func ExamplePort_SetFaults() {
	t := new(testing.T) // of the test function
	synctest.Test(t, func(t *testing.T) {
		const size, n = 1 << 20, 16
		net := rdmatest.New(t, rdmatest.Config{Seed: 1})
		a, b := net.Device(), net.Device()
		var ports []*rdmatest.Port
		var paths [][]*rdmatest.Port
		for range 4 {
			port := net.Port(rdmatest.PortConfig{Rate: 1e9, Delay: 5 * time.Microsecond})
			ports, paths = append(ports, port), append(paths, []*rdmatest.Port{port})
		}
		net.Paths(a, b, rdmatest.ByPort, paths...)
		ports[2].SetFaults(rdmatest.Config{Loss: .1})
		x, y := rdmatest.Connect(t, a, b)
		for _, e := range []*rdmatest.Endpoint{x, y} {
			if err := e.QP.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: true, Accept: true, Paths: 4}); err != nil {
				t.Fatal(err)
			}
		}
		src, dst := x.MR(size), y.MR(size)
		for range n {
			x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
		}
		for range n {
			x.Done()
		}
		fmt.Println("all WRITEs are complete")
		for i, port := range ports {
			s := port.Stats()
			fmt.Printf("path %d loses packets: %-5v  carries over a fifth: %v\n", i, s.CableLost > 0, s.Bytes > n*size/5)
		}
	})
	// Output:
	// all WRITEs are complete
	// path 0 loses packets: false  carries over a fifth: true
	// path 1 loses packets: false  carries over a fifth: true
	// path 2 loses packets: true   carries over a fifth: false
	// path 3 loses packets: false  carries over a fifth: true
}
