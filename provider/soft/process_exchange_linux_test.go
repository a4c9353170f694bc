//go:build !adverb_portable

package soft_test

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Twelve processes lose nothing while others come, are stopped and are killed.
func TestProcessesOneAddress(t *testing.T) {
	noLanes(t)
	exchangeAtOneAddress(t)
}

func exchangeAtOneAddress(t *testing.T) {
	device := loopback(t) + "@" + loopAddr(20)
	twelve := startTeam(t, device, 12, order{Retry: patientRetry})
	random := newRand(t)
	end := time.Now().Add(*soak)
	var churn sync.WaitGroup
	var joined, killed, stopped [2]int
	for i := range joined {
		r := rand.New(rand.NewPCG(random.Uint64(), 0))
		churn.Go(func() {
			for time.Now().Before(end) {
				pair := startQuietly(t, device)
				if pair == nil {
					return
				}
				joined[i] += len(pair)
				live := 1 + r.Uint64N(maxLife)
				for _, p := range pair {
					if r.IntN(2) == 0 {
						p.signal(syscall.SIGSTOP)
						stopped[i]++
					}
				}
				if !twelve[i].exchanges(joined[i], live) {
					return
				}
				for _, p := range pair {
					if r.IntN(2) == 0 {
						p.signal(syscall.SIGCONT)
					}
					p.kill()
					killed[i]++
				}
			}
		})
	}
	churn.Wait()
	sum := twelve.finish()
	twelve.unhurt()
	if sum.RCSent != sum.RCReceived || sum.RCSent == 0 || sum.UDAnswered == 0 {
		t.Errorf("%+v, want RCReceived to be RCSent, and UD requests answered", sum)
	}
	t.Logf("%d joined, %d stopped, %d killed; %+v", joined[0]+joined[1], stopped[0]+stopped[1], killed[0]+killed[1], sum)
}

// These bound how long a pair of others lives. The random number of messages that one of the twelve
// receives meanwhile decides, so some pairs are killed before they have connected and some
// afterwards. But a pair that is stopped must go on or end before the retries of others end,
// however slow the machine is.
const (
	maxLife     = 400 // messages
	maxLifetime = 150 * time.Millisecond
)

// exchanges waits until a member has received n more messages, or until maxLifetime has passed. It
// reports false if the member has failed, and fails the test then. Goroutines other than the test's
// may call it. The number is another one at each call.
func (p *process) exchanges(number int, n uint64) bool {
	p.orders.Encode(order{Await: &progress{Number: number, RC: n}})
	enough := time.After(maxLifetime)
	for {
		select {
		case r := <-p.reports:
			switch {
			case r.Reached == number:
				return true
			case r.Wrong != "" || r.Failed != nil:
				p.t.Errorf("%s: report %+v, want %d messages received", p.name, r, n)
				return false
			}
		case <-p.ended:
			p.t.Errorf("%s: %v\n%s\nwant it alive", p.name, p.cmd.ProcessState, p.stderr.String())
			return false
		case <-enough:
			return true
		}
	}
}

// startQuietly starts two members, which exchange messages until something happens to them. If they
// cannot, it fails the test and returns nil. Goroutines other than the test's may call it.
func startQuietly(t *testing.T, device string) (pair team) {
	o := order{Connect: true, Retry: loopRetry}
	for _, name := range []string{"passer-by A", "passer-by B"} {
		pair = append(pair, start(t, name, device))
	}
	limit := time.After(patience)
	for _, p := range pair {
		select {
		case r := <-p.reports:
			if r.Address == nil {
				t.Errorf("%s: report %+v, want its address", p.name, r)
				return nil
			}
			o.Peers = append(o.Peers, *r.Address)
		case <-p.ended:
			t.Errorf("%s: %v\n%s\nwant it alive", p.name, p.cmd.ProcessState, p.stderr.String())
			return nil
		case <-limit:
			t.Errorf("%s: no report of its address within %v", p.name, patience)
			return nil
		}
	}
	for i, p := range pair {
		o.Self = i
		p.orders.Encode(o)
	}
	return pair
}

// If a process is killed in the middle of its transfers, its connections fail, and no others.
func TestProcessKilled(t *testing.T) {
	ms := startTeam(t, loopback(t)+"@"+loopAddr(21), 5, order{Retry: patientRetry})
	const victim = 2
	ms[victim].kill()
	killedAt := time.Now()
	others := append(append(team{}, ms[:victim]...), ms[victim+1:]...)
	for _, p := range others {
		p.await("told of the killed peer", func(r *report) bool { return r.Failed != nil })
	}
	t.Logf("everybody knew after %v", time.Since(killedAt))
	if took := time.Since(killedAt); took > 20*time.Second {
		t.Errorf("the connections to a killed process failed after %v, want 20s at most", took)
	}
	sum := others.finish()
	for _, p := range others {
		if len(p.failed) != 1 || p.failed[0] != (failure{victim, "WC_RETRY_EXC_ERR"}) {
			t.Errorf("%s: failures %v, want RETRY_EXC of peer %d alone", p.name, p.failed, victim)
		}
	}
	t.Logf("%+v", sum)
}

// A process that is stopped goes on afterwards, if its peers wait long enough. Others have come and
// gone meanwhile.
func TestProcessStopped(t *testing.T) {
	device := loopback(t) + "@" + loopAddr(22)
	// Its peers wait for 17 s, in which the others start, talk and end, though the machine is busy.
	ms := startTeam(t, device, 4, order{Retry: verbs.Retry{Timeout: 19, RetryCount: 7, RNRRetryCount: 7}})
	for i := range 3 {
		ms[i].signal(syscall.SIGSTOP)
		come := startTeam(t, device, 2, order{Retry: patientRetry})
		come.finish()
		come.unhurt()
		ms[i].signal(syscall.SIGCONT)
	}
	sum := ms.finish()
	ms.unhurt()
	if sum.RCSent != sum.RCReceived {
		t.Errorf("%+v, want RCReceived to be RCSent", sum)
	}
	t.Logf("%+v", sum)
}

// Each process of an address can be a member of a multicast group.
func TestProcessesMulticast(t *testing.T) {
	group := verbs.GIDFromAddr(netip.AddrFrom4([4]byte{239, 77, byte(newRand(t).Uint32()), 4}))
	ms := startTeam(t, loopback(t)+"@"+loopAddr(23), 4, order{Retry: patientRetry, Group: group})
	for _, p := range ms {
		p.order(order{Await: &progress{Number: 1, Mcast: 40}})
	}
	for _, p := range ms {
		p.await("receiving what is sent to the group", func(r *report) bool { return r.Reached == 1 })
	}
	sum := ms.finish()
	ms.unhurt()
	// A member sends before the last has attached, and datagrams may be lost.
	if sum.McastReceived == 0 || sum.McastReceived > 3*sum.McastSent || sum.McastReceived < sum.McastSent {
		t.Errorf("4 members sent %d messages to the group, and received %d; want each received by at most 3, and as many received as sent at least", sum.McastSent, sum.McastReceived)
	}
	t.Logf("%+v", sum)
}

// If a process is killed while another is stopped, only its connections fail. The kernel may give
// others' datagrams to the stopped one by mistake, but they find their way again before the retries
// end.
func TestProcessKilledWhileStopped(t *testing.T) {
	noLanes(t)
	killWhileStopped(t)
}

func killWhileStopped(t *testing.T) {
	ms := startTeam(t, loopback(t)+"@"+loopAddr(27), 4, order{Retry: patientRetry})
	const victim, stopped = 0, 1
	ms[stopped].signal(syscall.SIGSTOP)
	ms[victim].kill() // the last member takes the number of its socket
	// The other two must reach each other again before the retries of the stopped one's connections
	// end.
	for _, p := range ms[2:] {
		p.order(order{Await: &progress{Number: 1, RC: 20}})
	}
	for _, p := range ms[2:] {
		p.await("exchanging messages again", func(r *report) bool { return r.Reached == 1 })
	}
	ms[stopped].signal(syscall.SIGCONT)
	others := ms[1:]
	for _, p := range others {
		p.await("told of the killed peer", func(r *report) bool { return r.Failed != nil })
	}
	others.finish()
	for _, p := range others {
		if len(p.failed) != 1 || p.failed[0] != (failure{victim, "WC_RETRY_EXC_ERR"}) {
			t.Errorf("%s: failures %v, want RETRY_EXC of peer %d alone", p.name, p.failed, victim)
		}
	}
}
