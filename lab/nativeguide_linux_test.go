package lab

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// guideStep is a command of docs/guide/cards.md.
type guideStep struct {
	there  string // what the other host runs, if it does
	port   string // which that serves
	byCM   bool   // through the connection manager
	here   string
	more   string // flags of both, since an emulated machine is slow
	prints string // a part of here's output
}

var guideSteps = []guideStep{
	{here: "ls /sys/class/infiniband", prints: "rxe0"},
	{here: "ibv_devinfo", prints: "PORT_ACTIVE"},
	{here: "adverb devinfo", prints: "PORT_ACTIVE"},
	{here: "adverb devices", prints: "rxe0"},
	{here: "adverb verify mlx5_0", more: "--run ^rc/send", prints: "2 passed, 0 failed"},
	{there: "adverb verify --serve mlx5_0", port: "18516", here: "adverb verify mlx5_0 HOST", more: "--run ^rc/send", prints: "2 passed, 0 failed"},
	{there: "adverb rping -s", port: "7174", byCM: true, here: "adverb rping -c -a HOST -v", more: "-C 3", prints: "ping data: rdma-ping-2"},
	{there: "adverb write_bw -d mlx5_0", port: "18515", here: "adverb write_bw -d mlx5_0 HOST", more: "-n 50 -u 20", prints: " 65536      50  "},
	{here: "adverb verify mlx5_0 --redact", more: "--run ^rc/send", prints: "2 passed, 0 failed"},
	{here: "adverb devinfo -v --report --redact", prints: "hca_id:\trxe0"},
}

// guideCommands returns the programs that the steps of the guide run.
func guideCommands(t *testing.T) (commands []string) {
	t.Helper()
	text, err := os.ReadFile("../docs/guide/cards.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## Step by step\n")
	steps, rest, _ := strings.Cut(rest, "\n**MTU.**")
	_, rest, _ = strings.Cut(rest, "\n## Report a card\n")
	report, _, found := strings.Cut(rest, "\n## ")
	if !found {
		t.Fatal("the guide has no steps, or no report")
	}
	for _, m := range regexp.MustCompile("(?m)`((?:adverb|ls|ibv_\\w+)(?:\\s[^`]+)?)`|^(adverb .*)$").FindAllStringSubmatch(steps+report, -1) {
		command, _, _ := strings.Cut(m[1]+m[2], " >")
		commands = append(commands, strings.Join(strings.Fields(command), " "))
	}
	return commands
}

// TestGuideSteps finds a step of the guide that TestNativeGuide does not run, and one that the guide no longer has.
func TestGuideSteps(t *testing.T) {
	var steps []string
	for _, s := range guideSteps {
		steps = append(steps, s.here)
		if s.there != "" {
			steps = append(steps, s.there)
		}
	}
	commands := guideCommands(t)
	slices.Sort(commands)
	slices.Sort(steps)
	if !slices.Equal(commands, steps) {
		t.Errorf("the guide has the commands\n%s\nand the test runs\n%s", strings.Join(commands, "\n"), strings.Join(steps, "\n"))
	}
}

// TestNativeGuide runs the commands of docs/guide/cards.md. The guest's device is the card, and the other host is this one.
func TestNativeGuide(t *testing.T) {
	needCards(t)
	l := ownLab(t.Context(), t, Config{MTU: 1500})
	put(t.Context(), t, l.Guest(0), nativeTool(t.Context(), t, l.Host()), nativeBinary)
	here, there := nativeGuest{l.Guest(0)}, l.Host()
	for _, step := range guideSteps {
		t.Run(step.here, func(t *testing.T) {
			ctx := within(t, patience)
			argv := func(command, device string) []string {
				words := strings.NewReplacer("mlx5_0", device, "HOST", there.Addr(false).String()).Replace(command)
				if !strings.Contains(command, "--serve") { // the client says which cases
					words += " " + step.more
				}
				return strings.Fields(words)
			}
			var programs []*Process
			if step.there != "" {
				p := start(ctx, t, there, argv(step.there, there.Device(false))...)
				if step.byCM {
					if err := awaitCM(ctx, there, cmPort{rdmacm.PortSpaceTCP, step.port}, false, p); err != nil {
						t.Fatal(err)
					}
				} else {
					awaitListening(ctx, t, there, step.port, p)
				}
				programs = append(programs, p)
			}
			results := finish(t, append(programs, start(ctx, t, here, argv(step.here, here.Device(false))...))...)
			if out := results[len(results)-1].Stdout; !strings.Contains(out, step.prints) {
				t.Errorf("%s prints\n%s\nwant in it %q", step.here, out, step.prints)
			}
		})
	}
}
