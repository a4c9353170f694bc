//go:build !adverb_portable

package watch

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Ask asks every program of the user, or as root of all users, and returns what those told that
// answered, in the order of their process IDs. silent says of those that did not why they did not: a
// program may be stopped, or hang. Programs that ended meanwhile are in neither.
func Ask(ctx context.Context, w Want) (answers []Process, silent []error, err error) {
	names, err := sockets(os.Geteuid())
	if err != nil {
		return nil, nil, err
	}
	answers, silent = askAll(ctx, names, w)
	return answers, silent, ctx.Err()
}

func askAll(ctx context.Context, names []string, w Want) (answers []Process, silent []error) {
	var (
		mu     sync.Mutex
		all    sync.WaitGroup
		places = make(chan struct{}, askAtOnce)
	)
	for _, name := range names {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			p, err := ask(ctx, name, w)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				answers = append(answers, p)
			case !errors.Is(err, errNotOurs):
				silent = append(silent, err)
			}
		})
	}
	all.Wait()
	slices.SortFunc(answers, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	slices.SortFunc(silent, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return answers, silent
}

// errNotOurs is the error of a socket that belongs to nobody any more, or to another user.
var errNotOurs = errors.New("no program of this user")

// ask asks one program.
func ask(ctx context.Context, name string, w Want) (Process, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", name)
	if err != nil {
		if ctx.Err() == nil && !isBusy(err) {
			return Process{}, errNotOurs
		}
		return Process{}, fmt.Errorf("the program at %s takes no questions: is it stopped?", Clean(name))
	}
	c := conn.(*net.UnixConn)
	defer c.Close()
	cred, err := peer(c)
	if err != nil || os.Geteuid() != 0 && int(cred.Uid) != os.Geteuid() {
		return Process{}, errNotOurs
	}
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return Process{}, err
	}
	p, err := converse(c, w)
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return p, fmt.Errorf("pid %d: no answer within %v: is it stopped?", cred.Pid, answerTime)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET): // the last, if it had not read the question
		if time.Until(deadline) > 0 && ended(int(cred.Pid)) {
			return p, errNotOurs
		}
		return p, fmt.Errorf("pid %d: it hung up: %d others may be asking it already", cred.Pid, conversations)
	case err != nil:
		return p, fmt.Errorf("pid %d: its answer makes no sense: %s", cred.Pid, Clean(err.Error()))
	}
	p.PID = int(cred.Pid) // whatever it says
	return p, nil
}

func converse(c *net.UnixConn, w Want) (p Process, err error) {
	if _, err := io.WriteString(c, string(w)+"\n"); err != nil {
		return p, io.EOF // it hung up
	}
	limited := &io.LimitedReader{R: c, N: maxAnswer}
	err = json.NewDecoder(limited).Decode(&p)
	if limited.N <= 0 {
		return p, fmt.Errorf("it is longer than %d bytes", maxAnswer)
	}
	return p, err
}

// ended reports whether a process is no more, as far as this one may know.
func ended(pid int) bool {
	_, err := os.Stat("/proc/" + strconv.Itoa(pid))
	return errors.Is(err, os.ErrNotExist)
}

// sockets lists the sockets at which programs listen, of one user or, for root, of all.
func sockets(uid int) ([]string, error) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("list the programs that have devices: %w", err)
	}
	defer f.Close()
	prefix := socketName(uid, "")
	if uid == 0 {
		prefix = socketDir
	}
	var names []string
	lines := bufio.NewScanner(f)
	for lines.Scan() && len(names) < maxProcesses {
		if name, ok := listener(lines.Text()); ok && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, lines.Err()
}

// acceptsConnections is the flag by which /proc/net/unix marks a socket that listens (__SO_ACCEPTCON).
const acceptsConnections = 1 << 16

// listener returns the name of the socket in a line of /proc/net/unix, if it listens:
//
//	0000000000000000: 00000002 00000000 00010000 0001 01 3146880 @adverb/watch/0/4711-ABCDEFGH
func listener(line string) (name string, ok bool) {
	f := strings.Fields(line)
	if len(f) != 8 {
		return "", false
	}
	flags, err := strconv.ParseUint(f[3], 16, 64)
	return f[7], err == nil && flags&acceptsConnections != 0
}

// isBusy reports whether a program has not taken the questions that wait already.
func isBusy(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout() || strings.Contains(err.Error(), "resource temporarily unavailable")
}
