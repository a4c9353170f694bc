package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// The devices of these tests, on addresses that no other test has.
const (
	cmServerAddr   = "127.0.88.21"
	cmServerDevice = "soft_lo@127.0.88.21"
	cmClientDevice = "soft_lo@127.0.88.22"
)

// cmServer starts a server, which listens when this returns.
func cmServer(ctx context.Context, port, line string) *started {
	argv := strings.Fields(line)
	return start(ctx, append(argv, "--ib-dev", cmServerDevice, "--port", port)...)
}

// cmClient runs its client.
func cmClient(ctx context.Context, port, line string) result {
	argv := append(strings.Fields(line), "--ib-dev", cmClientDevice, "--port", port, "-s", cmServerAddr)
	code, stdout, stderr := tool(ctx, argv...)
	return result{code, stdout, stderr}
}

// cmPair runs both ends.
func cmPair(t *testing.T, server, client string) (s, c result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	port := freePort(t)
	srv := cmServer(ctx, port, server)
	c = cmClient(ctx, port, client)
	return <-srv.done, c
}

// cmCheckTranscript compares a run with what the C program printed.
func cmCheckTranscript(t *testing.T, who string, r result, want string) {
	t.Helper()
	if r.code != 0 || r.stderr != "" {
		t.Errorf("%s: status %d, stderr:\n%s", who, r.code, r.stderr)
	}
	diffLines(t, r.stdout, want)
}

// with inserts a line into a transcript.
func with(transcript, before, line string) string {
	return strings.Replace(transcript, before, line+before, 1)
}

// without takes lines out of a transcript.
func without(transcript string, lines ...string) string {
	for _, l := range lines {
		transcript = strings.Replace(transcript, l+"\n", "", 1)
	}
	return transcript
}

func TestCmatose(t *testing.T) {
	server, client := cmTranscript(t, "ucmatose_server.txt"), cmTranscript(t, "ucmatose_client.txt")
	const migrating = "migrating to new event channel\n"
	for _, tt := range []struct{ flags, server, client string }{
		{"", server, client},
		{"-c 5 -C 3 -S 5000", server, client},
		{"-c 2 -m", with(server, "cmatose: disconnecting\n", migrating), with(client, "test complete\n", migrating)},
		{"-P ib -a 12 -t 8", server, client},
		{"-C 1 -S 1", server, client},
		{"-S 100000 -C 2", server, client},
		{"-C 0 -c 3", without(server, "initiating data transfers", "completing sends", "receiving data transfers", "data transfers complete"),
			without(client, "receiving data transfers", "sending replies", "data transfers complete")},
		{"-S 0 -m", with(without(server, "initiating data transfers", "completing sends", "receiving data transfers", "data transfers complete"), "cmatose: disconnecting\n", migrating),
			with(without(client, "receiving data transfers", "sending replies", "data transfers complete"), "test complete\n", migrating)},
		{"-c 0", server, client},
	} {
		t.Run(strings.ReplaceAll(tt.flags, " ", ""), func(t *testing.T) {
			s, c := cmPair(t, "ucmatose "+tt.flags, "cmatose "+tt.flags)
			cmCheckTranscript(t, "server", s, tt.server)
			cmCheckTranscript(t, "client", c, tt.client)
		})
	}
}

func TestUdaddy(t *testing.T) {
	server, client := cmTranscript(t, "udaddy_server.txt"), cmTranscript(t, "udaddy_client.txt")
	for _, tt := range []struct{ flags, server, client string }{
		{"", server, client},
		{"-c 4 -C 20 -S 1024 -t 8", server, client},
		{"-P udp -p 0x111 -C 1 -S 1", server, client},
		{"-C 0", without(server, "receiving data transfers", "sending replies", "data transfers complete"),
			without(client, "initiating data transfers", "receiving data transfers", "data transfers complete")},
	} {
		t.Run(strings.ReplaceAll(tt.flags, " ", ""), func(t *testing.T) {
			s, c := cmPair(t, "udaddy "+tt.flags, "udaddy "+tt.flags)
			cmCheckTranscript(t, "server", s, tt.server)
			cmCheckTranscript(t, "client", c, tt.client)
		})
	}
}

// startUntil runs the tool, and returns when it has printed a line or is done.
func startUntil(ctx context.Context, line string, argv ...string) <-chan result {
	r, w := io.Pipe()
	var stdout, stderr strings.Builder
	done, code := make(chan result, 1), make(chan int, 1)
	go func() {
		code <- run(ctx, argv, strings.NewReader(""), w, &stderr)
		w.Close()
	}()
	out, reached := bufio.NewReader(r), make(chan struct{})
	go func() {
		for open := true; open; {
			s, err := out.ReadString('\n')
			stdout.WriteString(s)
			if err != nil || s == line+"\n" {
				open = false
			}
		}
		close(reached)
		rest, _ := io.ReadAll(out)
		stdout.Write(rest)
		done <- result{<-code, stdout.String(), stderr.String()}
	}()
	<-reached
	return done
}

func TestMckey(t *testing.T) {
	server, client := cmTranscript(t, "mckey_server.txt"), cmTranscript(t, "mckey_client.txt")
	const joined = "mckey: joined dgid: ::ffff:239.1.2.3 mlid 0x0 sl 0\n"
	for i, tt := range []struct{ group, receiver, sender string }{
		{"-m 239.88.0.%d", "", ""},
		{"-m 239.88.0.%d", "-c 3", "-C 20 -o"},
		{"-M ::ffff:239.88.0.%d", "-C 4 -S 1000", "-C 4 -S 1000"},
		{"-m 239.88.0.%d", "-C 0", "-C 0 -c 2"},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			group := fmt.Sprintf(tt.group, i+1)
			argv := func(dev, flags string) []string {
				return strings.Fields("mckey " + group + " --settle 0s -b " + strings.TrimPrefix(dev, "soft_lo@") + " --ib-dev " + dev + " " + flags)
			}
			r := startUntil(ctx, "receiving data transfers", argv(cmServerDevice, tt.receiver)...)
			code, stdout, stderr := tool(ctx, append(argv(cmClientDevice, tt.sender), "-s")...)
			want := func(text, flags string) string {
				n := 1
				if _, after, ok := strings.Cut(flags, "-c "); ok {
					n = cmAtoi(after)
				}
				text = strings.Replace(text, joined, strings.Repeat(strings.Replace(joined, "239.1.2.3", fmt.Sprintf("239.88.0.%d", i+1), 1), n), 1)
				if strings.Contains(flags, "-C 0") {
					text = without(text, "initiating data transfers", "receiving data transfers", "data transfers complete")
				}
				return text
			}
			cmCheckTranscript(t, "sender", result{code, stdout, stderr}, want(client, tt.sender))
			cmCheckTranscript(t, "receiver", <-r, want(server, tt.receiver))
		})
	}
	t.Run("no loopback", func(t *testing.T) {
		code, stdout, stderr := tool(t.Context(), strings.Fields("mckey -m 239.88.0.9 -l -b "+cmServerAddr+" --ib-dev "+cmServerDevice)...)
		const line = "mckey: unable to create QP: Operation not supported\nadverb: -l: "
		if code != 255 || !strings.HasPrefix(stderr, line) || stdout != "mckey: starting server\nmckey: joining\ntest complete\nreturn status -1\n" {
			t.Errorf("status %d, stdout:\n%sstderr:\n%s", code, stdout, stderr)
		}
	})
}

// Datagrams that are larger than the MTU are refused at either end.
func TestDatagramTooLarge(t *testing.T) {
	const line = ": message_size 4097 is larger than active mtu 4096\n"
	s, c := cmPair(t, "udaddy -S 4097", "udaddy")
	if s.code != 234 || s.stdout != "udaddy: starting server\nudaddy"+line+"udaddy: failing connection request\nreceiving data transfers\nsending replies\ndata transfers complete\ntest complete\nreturn status -22\n" {
		t.Errorf("server: %+v", s)
	}
	if c.code != 2 || !strings.Contains(c.stdout, "udaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: 2\ntest complete\nreturn status 2\n") {
		t.Errorf("client: %+v", c)
	}
	code, stdout, _ := tool(t.Context(), strings.Fields("mckey -m 239.88.0.9 -S 4097 -b "+cmServerAddr+" --ib-dev "+cmServerDevice)...)
	if code != 234 || !strings.Contains(stdout, "mckey"+line) {
		t.Errorf("mckey: status %d, %s", code, stdout)
	}
}

// Nobody listens: the classic line and status, and the reason.
func TestCMToolRefused(t *testing.T) {
	idle := start(t.Context(), "ucmatose", "--ib-dev", cmServerDevice, "--port", freePort(t), "-c", "0") // opens QP1
	<-idle.done
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	srv := cmServer(ctx, freePort(t), "ucmatose")
	for _, tt := range []struct {
		line, event string
		status      int
	}{
		{"ucmatose -c 2", "cmatose: event: RDMA_CM_EVENT_REJECTED, error: 8\n", int(rdmacm.RejectInvalidServiceID)},
		{"udaddy", "udaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: 1\n", 1},
	} {
		r := cmClient(t.Context(), freePort(t), tt.line)
		want := fmt.Sprintf("%stest complete\nreturn status %d\n", tt.event, tt.status)
		if r.code != tt.status || !strings.HasSuffix(r.stdout, want) || !strings.Contains(r.stderr, "no listener for port") {
			t.Errorf("%s: %+v", tt.line, r)
		}
	}
	cancel()
	if r := <-srv.done; r.code != statusInterrupted || r.stdout != "cmatose: starting server\n" || r.stderr != "adverb: interrupted\n" {
		t.Errorf("server: %+v", r)
	}
}

// A second server on a port is told so.
func TestCMToolAddressInUse(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for prog, name := range map[string]string{"ucmatose": "cmatose", "udaddy": "udaddy"} {
		port := freePort(t)
		first := cmServer(ctx, port, prog)
		r := <-cmServer(ctx, port, prog).done
		want := name + ": starting server\ntest complete\nreturn status -1\n"
		if r.code != 255 || r.stdout != want || !strings.HasPrefix(r.stderr, name+": bind address failed: Address already in use\nadverb: bind ") {
			t.Errorf("%s: %+v", prog, r)
		}
		defer func() { cancel(); <-first.done }()
	}
}

// Ends whose flags do not go together come to an end, where the C programs wait for ever.
func TestCmatoseFlagsDiffer(t *testing.T) {
	t.Run("connections", func(t *testing.T) {
		s, c := cmPair(t, "ucmatose -c 1", "ucmatose -c 2")
		if c.code != 28 || !strings.Contains(c.stdout, "cmatose: event: RDMA_CM_EVENT_REJECTED, error: 28\n") {
			t.Errorf("client: %+v", c)
		}
		if s.code == 0 || !strings.Contains(s.stdout, "cmatose: failing connection request\n") || !strings.Contains(s.stderr, errTooMany.Error()) {
			t.Errorf("server: %+v", s)
		}
	})
	t.Run("messages", func(t *testing.T) { // the client has no receives for the rest, and the server waits for more
		s, _ := cmPair(t, "ucmatose -C 10", "ucmatose -C 5")
		if s.code != 255 || !strings.Contains(s.stdout, "cmatose: failed polling CQ: -1\n") || s.stderr == "" {
			t.Errorf("server: %+v", s)
		}
	})
	t.Run("size", func(t *testing.T) {
		s, c := cmPair(t, "ucmatose -S 200", "ucmatose -S 100")
		// Which of the two the client sees first is up to the network.
		why := strings.Contains(c.stderr, "work request") || strings.Contains(c.stderr, errPeerLeft.Error())
		if s.code != 255 || c.code != 255 || !why {
			t.Errorf("server: %+v\nclient: %+v", s, c)
		}
	})
}

// Processes of their own, that share the loopback interface's device.
func TestCMToolProcesses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux do processes share an address")
	}
	for _, tt := range []struct{ name, prog, flags, bind, host string }{
		{"cmatose", "ucmatose", "-c 3 -m", "", "localhost"},
		{"cmatose IPv6", "ucmatose", "", "::0", "::1"},
		{"cmatose bound", "ucmatose", "-S 3000", "127.0.0.1", "127.0.0.1"},
		{"udaddy", "udaddy", "", "", "localhost"},
		{"udaddy IPv6", "udaddy", "-c 2", "::1", "::1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Contains(tt.host, ":") {
				loopbackGID(t, tt.host)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			argv := append([]string{tt.prog, "--port", freePort(t)}, strings.Fields(tt.flags)...)
			server := argv
			if tt.bind != "" {
				server = append(argv[:len(argv):len(argv)], "-b", tt.bind)
			}
			s := startProcess(ctx, t, server...)
			c := startProcess(ctx, t, append(argv[:len(argv):len(argv)], "-s", tt.host)...)
			for who, r := range map[string]result{"server": <-s.done, "client": <-c.done} {
				want := cmTranscript(t, tt.prog+"_"+who+".txt")
				if strings.Contains(tt.flags, "-m") && who == "server" {
					want = with(want, "cmatose: disconnecting\n", "migrating to new event channel\n")
				} else if strings.Contains(tt.flags, "-m") {
					want = with(want, "test complete\n", "migrating to new event channel\n")
				}
				cmCheckTranscript(t, who, r, want)
			}
		})
	}
}
