// Command bench measures what the product costs beyond what it is made of, as ratios within one run: a blocking
// invoke_agent over the raw call to the same peer, commits, memory of calls that wait, appends and restarts.
//
// `make bench` runs it. It prints a table with the aim beside each figure; a figure that misses its aim fails nothing,
// only an error does. Peers run in a process of their own, which this binary is too, and which ends with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"
)

func main() {
	if serve := peerProcess(); serve != nil {
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench peer:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// sizes says how much is measured.
type sizes struct {
	rounds  int   // runs of each figure, interleaved; the median is printed
	calls   int   // pairs of calls of one run
	parked  []int // calls that wait at once
	appends time.Duration
	open    int // calls that are open when a process starts again
	// exchanges is how many calls over a queue each caller makes in one run.
	exchanges int
	api       apiSizes
}

// part is a part of the benchmark, by the name that -run picks.
type part struct {
	name string
	run  func(ctx context.Context, b *bench) error
}

var parts = []part{
	{"invoke", measureInvoke},
	{"parked", measureParked},
	{"append", measureAppends},
	{"restart", measureRestart},
	{"queue", measureQueue},
	{"api", measureAPI},
}

// bench is one run of the program.
type bench struct {
	sizes sizes
	rows  *regexp.Regexp
	dir   string
	peers *peers
	table *table
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	var (
		pick  = flags.String("run", "", "regular expression of the parts to run: invoke, parked, append, restart, queue, api")
		rows  = flags.String("rows", "", "regular expression of the rows of invoke to measure")
		calls = flags.Int("calls", 200, "calls of one run of a row")
		form  = flags.String("o", "text", "text, or json: a figure a line")
		cpu   = flags.String("cpuprofile", "", "write a CPU profile to this file")
		mem   = flags.String("memprofile", "", "write a profile of all allocations to this file")
		quick = flags.Bool("quick", false, "measure little, to see that it works")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	want, err := regexp.Compile(*pick)
	if err != nil {
		return fmt.Errorf("flag -run: %w", err)
	}
	if *form != "text" && *form != "json" {
		return fmt.Errorf("flag -o is text or json, not %q", *form)
	}
	b := &bench{
		sizes: sizes{rounds: 5, calls: *calls, parked: []int{1000, 10_000}, appends: time.Second, open: 1000, exchanges: 30,
			api: apiSizes{idle: 1000, readers: 200, events: 1000, paced: 250, pace: 40 * time.Millisecond, trips: 200}},
		table: &table{json: *form == "json", out: out},
	}
	if *quick {
		b.sizes = sizes{rounds: 1, calls: 3, parked: []int{8}, appends: 20 * time.Millisecond, open: 4, exchanges: 2,
			api: apiSizes{idle: 8, readers: 4, events: 8, paced: 4, pace: time.Millisecond, trips: 2}}
	}
	if b.rows, err = regexp.Compile(*rows); err != nil {
		return fmt.Errorf("flag -rows: %w", err)
	}
	if b.dir, err = os.MkdirTemp("", "orchestrator-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.peers, err = startPeers(ctx, peerEnv+"=1", ports); err != nil {
		return err
	}
	defer func() {
		if e := b.peers.stop(); err == nil {
			err = e
		}
	}()
	if *cpu != "" {
		f, err := os.Create(*cpu)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if *mem != "" {
		runtime.MemProfileRate = 512
		defer func() { err = errors.Join(err, writeAllocs(*mem)) }()
	}
	began := time.Now()
	b.table.head("%s, %s/%s, %d CPUs, %s", time.Now().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	for _, p := range parts {
		if !want.MatchString(p.name) {
			continue
		}
		if err := p.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	b.table.head("%.0f s in all", time.Since(began).Seconds())
	return b.table.err
}

func writeAllocs(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}
