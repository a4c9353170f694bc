//go:build !adverb_portable

package watch

import (
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
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/internal/user"
)

// Ask asks every program of the user, or as root of all users, and returns the answers, in the order of the programs'
// process IDs. silent has a text for each program that did not answer: a program may be stopped, or hang. It also
// says how many programs were not asked, and of which users: Ask takes a few seconds at most. Programs that ended
// meanwhile are in neither. The error is user.ErrUnmapped where the user's programs cannot be told from those of
// others.
func Ask(ctx context.Context, w Want) (answers []Process, silent []error, err error) {
	if err := user.Self(); err != nil {
		return nil, nil, fmt.Errorf("ask the programs of this user: %w; root of the namespace can ask", err)
	}
	begun := time.Now()
	found, err := findPrograms(listeners(begun.Add(listTime)), asksAll())
	if err != nil {
		return nil, nil, err
	}
	answers, silent = askAll(ctx, found, w, begun.Add(askTime))
	return answers, silent, ctx.Err()
}

// askAll asks the programs at sockets. It begins with none after a time.
func askAll(ctx context.Context, f *found, w Want, until time.Time) (answers []Process, silent []error) {
	type outcome struct {
		of  *owned
		p   Process
		err error
	}
	outcomes := make(chan outcome)
	asked := 0
	for t := f.turns(); ; {
		// A user that listens at very many sockets has a few of them asked at a time, as every user has.
		for asked < askAtOnce && ctx.Err() == nil && time.Now().Before(until) {
			of, name, ok := t.next()
			if !ok {
				break
			}
			asked++
			go func() {
				p, err := ask(ctx, name, w)
				outcomes <- outcome{of, p, err}
			}()
		}
		if asked == 0 {
			break
		}
		o := <-outcomes
		asked--
		o.of.asked--
		switch {
		case o.err == nil:
			answers = append(answers, o.p.byOwner(func(pid int) bool { return ofSameUser(pid, o.p.PID) })...)
		case !errors.Is(o.err, errNotOurs):
			o.of.silent = append(o.of.silent, o.err)
		}
	}
	slices.SortStableFunc(answers, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	return answers, f.silence()
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
	from, err := user.PeerOfConn(c)
	if err != nil || !believed(from.UID) {
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
		return p, fmt.Errorf("pid %d: no answer within %v: is it stopped?", from.PID, answerTime)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET): // the last happens if the program had not read the question
		if time.Until(deadline) > 0 && ended(from.PID) {
			return p, errNotOurs
		}
		return p, fmt.Errorf("pid %d: it hung up: %d others may be asking it already, or its user namespace does not map this user", from.PID, conversations)
	case err != nil:
		return p, fmt.Errorf("pid %d: its answer makes no sense: %s", from.PID, Clean(err.Error()))
	}
	p.PID = from.PID // whatever ID the answer has
	return p, nil
}

// believed reports whether this program asks the programs of a user: of its own or, as root, of all users that it can
// tell from others.
func believed(uid uint32) bool {
	return user.Check(uid) == nil || asksAll() && user.Known(uid)
}

// asksAll reports whether this program asks those of all users.
func asksAll() bool { return user.IsRoot(uint32(os.Geteuid())) }

func converse(c *net.UnixConn, w Want) (p Process, err error) {
	if _, err := io.WriteString(c, string(w)+"\n"); err != nil {
		return p, io.EOF // the program hung up
	}
	limited := &io.LimitedReader{R: c, N: maxAnswer}
	err = json.NewDecoder(limited).Decode(&p)
	if limited.N <= 0 {
		return p, fmt.Errorf("it is longer than %d bytes", maxAnswer)
	}
	return p, err
}

// ended reports whether a process has ended, as far as this one may know. It knows nothing of processes in other PID
// namespaces, whose ID it sees as 0.
func ended(pid int) bool {
	if pid == 0 {
		return false
	}
	_, err := os.Stat("/proc/" + strconv.Itoa(pid))
	return errors.Is(err, os.ErrNotExist)
}

// ofSameUser reports whether two processes are of one user.
func ofSameUser(a, b int) bool {
	x, ok1 := userOf(a)
	y, ok2 := userOf(b)
	return ok1 && ok2 && x == y
}

// userOf returns a process's effective user. The owner of its directory in /proc is another one while the process begins.
func userOf(pid int) (uid string, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "Uid:" {
			return f[2], true
		}
	}
	return "", false
}

// isBusy reports whether a program has not taken the questions that wait already.
func isBusy(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout() || strings.Contains(err.Error(), "resource temporarily unavailable")
}
