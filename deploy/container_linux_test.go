package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// insideVariable makes a run of the test binary the inside of a container.
const insideVariable = "ORCHESTRATOR_DEPLOY_TEST_INSIDE"

// containerSpec is what the inside is told first: what its file system is like.
type containerSpec struct {
	Root     string // becomes /
	ReadOnly bool
	Mounts   []mount
	Tmpfs    []string
	Env      []string
}

type mount struct {
	Source, Target string
	ReadOnly       bool
}

// order is what the inside is told to do then.
type order struct {
	Run     []string          // a command, to its end
	Start   []string          // the command that is the container's own
	Signal  int               // to it, which is then waited for
	Method  string            // of a request over HTTP
	URL     string            //
	Header  map[string]string //
	Body    string            //
	Seconds float64           // how long it may take
}

// result is what came of it.
type result struct {
	Code           int // the exit code, or the status
	Stdout, Stderr string
	Took           time.Duration
	Problem        string // it could not be done, or took too long
}

// inside is the container: it makes the file system, gives up what it needed for that, and does as it is told.
func inside() int {
	runtime.LockOSThread() // what is given up is given up by a thread, and all processes are this one's
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	out := json.NewEncoder(os.Stdout)
	var spec containerSpec
	err := in.Decode(&spec)
	if err == nil {
		err = spec.enter()
	}
	if err != nil {
		_ = out.Encode(result{Problem: err.Error()}) // whoever reads has the exit code, too
		return 1
	}
	_ = out.Encode(result{}) // as above
	w := worker{env: spec.Env}
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return 0 // the test has ended, and with us ends what we started
		}
		_ = out.Encode(w.do(o)) // as above
	}
}

// enter makes the file system of the container this process's own, and gives up all rights.
func (s containerSpec) enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	mounts := append([]mount{{Source: s.Root, Target: "/"}, {Source: "/dev/null", Target: "/dev/null"}}, s.Mounts...)
	for _, m := range mounts {
		if err := unix.Mount(m.Source, filepath.Join(s.Root, m.Target), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	for _, dir := range s.Tmpfs {
		if err := unix.Mount("tmpfs", filepath.Join(s.Root, dir), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
			return fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
		}
	}
	for _, m := range mounts {
		if m.ReadOnly || s.ReadOnly && m.Target == "/" {
			if err := readOnly(filepath.Join(s.Root, m.Target)); err != nil {
				return fmt.Errorf("make %s read-only: %w", m.Target, err)
			}
		}
	}
	if err := unix.Chroot(s.Root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := loopback(); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// readOnly makes a mount read-only. It keeps what else is forbidden there, which may not be allowed.
func readOnly(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY)
	for _, f := range [][2]uintptr{
		{unix.ST_NOSUID, unix.MS_NOSUID}, {unix.ST_NODEV, unix.MS_NODEV}, {unix.ST_NOEXEC, unix.MS_NOEXEC},
		{unix.ST_NOATIME, unix.MS_NOATIME}, {unix.ST_NODIRATIME, unix.MS_NODIRATIME}, {unix.ST_RELATIME, unix.MS_RELATIME},
	} {
		if uintptr(st.Flags)&f[0] != 0 {
			flags |= f[1]
		}
	}
	return unix.Mount("", path, "", flags, "")
}

func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// worker does the orders.
type worker struct {
	env     []string
	main    *exec.Cmd
	mainOut bytes.Buffer
	over    chan error
}

func (w *worker) do(o order) (res result) {
	began := time.Now()
	defer func() { res.Took = time.Since(began) }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(o.Seconds*float64(time.Second)))
	defer cancel()
	switch {
	case o.Run != nil:
		cmd := w.command(ctx, o.Run)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		res = ended(cmd, err)
		res.Stdout, res.Stderr = out.String(), errs.String()
		if ctx.Err() != nil {
			res.Problem = fmt.Sprintf("%v takes longer than %vs", o.Run, o.Seconds)
		}
	case o.Start != nil:
		w.main = w.command(context.Background(), o.Start)
		w.mainOut.Reset()
		w.main.Stdout, w.main.Stderr = &w.mainOut, &w.mainOut
		if err := w.main.Start(); err != nil {
			return result{Problem: err.Error()}
		}
		over := make(chan error, 1)
		w.over = over
		main := w.main
		go func() { over <- main.Wait() }() // it ends with the process, which ends with this one
	case o.Signal != 0:
		if err := w.main.Process.Signal(syscall.Signal(o.Signal)); err != nil {
			return result{Problem: err.Error()}
		}
		select {
		case err := <-w.over:
			res = ended(w.main, err)
			res.Stderr = w.mainOut.String()
		case <-ctx.Done():
			res.Problem = fmt.Sprintf("it has not ended after %vs", o.Seconds)
		}
	default:
		res = request(ctx, o)
	}
	return res
}

// command is started by the thread that has given up its rights.
func (w *worker) command(ctx context.Context, args []string) *exec.Cmd {
	name := args[0]
	if !strings.Contains(name, "/") {
		name = "/usr/local/bin/" + name // where the image's PATH finds it
	}
	cmd := exec.CommandContext(ctx, name, args[1:]...)
	cmd.Env = w.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func ended(cmd *exec.Cmd, err error) result {
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return result{Problem: err.Error()}
	}
	return result{Code: cmd.ProcessState.ExitCode()}
}

func request(ctx context.Context, o order) result {
	req, err := http.NewRequestWithContext(ctx, o.Method, o.URL, strings.NewReader(o.Body))
	if err != nil {
		return result{Problem: err.Error()}
	}
	for name, value := range o.Header {
		req.Header.Set(name, value)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return result{Problem: err.Error()}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return result{Problem: err.Error()}
	}
	return result{Code: res.StatusCode, Stdout: string(body)}
}

// container is a running inside, as the test sees it.
type container struct {
	t   *testing.T
	in  *json.Encoder
	out *json.Decoder
}

// startContainer makes a container of the spec, whose user is uid and has no rights there.
func startContainer(t *testing.T, spec containerSpec, uid, gid int) *container {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_NET_ADMIN},
		Pdeathsig:   syscall.SIGKILL,
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // the death of the thread that starts it would be its own
	if err := cmd.Start(); err != nil {
		noContainer(t, err)
	}
	c := &container{t: t, in: json.NewEncoder(stdin), out: json.NewDecoder(stdout)}
	t.Cleanup(func() {
		_ = stdin.Close() // it ends then
		_ = cmd.Wait()    // whatever it says
	})
	if err := c.in.Encode(spec); err != nil {
		noContainer(t, err)
	}
	var res result
	if err := c.out.Decode(&res); err != nil {
		noContainer(t, err)
	}
	if res.Problem != "" {
		noContainer(t, errors.New(res.Problem))
	}
	return c
}

// noContainer ends the test: a failure where it must work, which is in CI, else it is skipped and says why.
func noContainer(t *testing.T, err error) {
	t.Helper()
	message := fmt.Sprintf("NOT TESTED: that the image runs as its user, on a read-only root, with the mounts, probes and stop that "+
		"the files name. That takes user namespaces, and here there are none: %v. As root outside of a container, or after "+
		"sysctl kernel.unprivileged_userns_clone=1 (on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0), it is tested.", err)
	if os.Getenv("CI") != "" {
		t.Fatal(message)
	}
	t.Skip(message)
}

func (c *container) do(o order) result {
	c.t.Helper()
	if o.Seconds == 0 {
		o.Seconds = 60
	}
	if err := c.in.Encode(o); err != nil {
		c.t.Fatal(err)
	}
	var res result
	if err := c.out.Decode(&res); err != nil {
		c.t.Fatal(err)
	}
	return res
}

// ok runs a command that must exit with 0.
func (c *container) ok(args ...string) string {
	c.t.Helper()
	res := c.do(order{Run: args})
	if res.Code != 0 || res.Problem != "" {
		c.t.Fatalf("%v: exit code %d %s: %s%s", args, res.Code, res.Problem, res.Stdout, res.Stderr)
	}
	return res.Stdout
}

// probe asks as an engine does.
func (c *container) probe(p probe, port string) bool {
	c.t.Helper()
	o := order{Run: p.exec, Seconds: p.timeout.Seconds()}
	if p.exec == nil {
		o.Method, o.URL = http.MethodGet, "http://127.0.0.1:"+port+p.path
	}
	res := c.do(o)
	return res.Problem == "" && (p.exec != nil && res.Code == 0 || p.exec == nil && res.Code >= 200 && res.Code < 400)
}

// comesUp waits for a probe to say yes within its tries.
func (c *container) comesUp(p probe, port string) {
	c.t.Helper()
	began := time.Now()
	tick := time.NewTicker(min(p.period, 100*time.Millisecond)) // the bound is the engine's, the test need not be as patient
	defer tick.Stop()
	for !c.probe(p, port) {
		if time.Since(began) > p.period*time.Duration(p.tries) {
			c.t.Fatalf("it is not up after %s; %+v", time.Since(began), c.do(order{Signal: int(syscall.SIGKILL)}))
		}
		<-tick.C
	}
}

// probe is one of a file's.
type probe struct {
	exec            []string
	path            string
	period, timeout time.Duration
	tries           int
}

// run is the product as one of the files runs it.
type run struct {
	spec                         containerSpec
	args                         []string
	startup, readiness, liveness probe
	grace                        time.Duration
}

// place makes the image's file system, with what the file mounts in it.
func place(t *testing.T, im image) containerSpec {
	t.Helper()
	root := t.TempDir()
	data, err := os.ReadFile(build(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"usr/local/bin", "data", "tmp", "dev", "etc/orchestrator"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, im.entrypoint[0]), data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "dev/null"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return containerSpec{Root: root}
}

func environ(of ...map[string]string) (env []string) {
	all := map[string]string{}
	for _, m := range of {
		maps.Copy(all, m)
	}
	for k, v := range all {
		env = append(env, k+"="+v)
	}
	return env
}

func asCompose(t *testing.T, im image, host map[string]string) run {
	t.Helper()
	s := readCompose(t).Services["orchestrator"]
	r := run{spec: place(t, im), args: append(im.entrypoint, im.cmd...), grace: duration(t, s.StopGracePeriod)}
	env := map[string]string{}
	for k, v := range s.Environment {
		env[k] = interpolated(t, v, host)
	}
	r.spec.Env, r.spec.ReadOnly, r.spec.Tmpfs = environ(im.env, env), s.ReadOnly, s.Tmpfs
	for _, v := range s.Volumes {
		volume, target, _ := strings.Cut(v, ":")
		r.spec.Mounts = append(r.spec.Mounts, mount{Source: filepath.Join(t.TempDir(), volume), Target: target})
	}
	health := probe{exec: im.healthcheck, period: im.interval, timeout: im.timeout, tries: 1}
	r.readiness, r.liveness, r.startup = health, health, health
	r.startup.period = im.startPeriod
	return r
}

func asKubernetes(t *testing.T, im image) run {
	t.Helper()
	k := readKubernetes(t)
	pod := k.deploy.Spec.Template.Spec
	ct := pod.Containers[0]
	r := run{spec: place(t, im), args: append(im.entrypoint, ct.Args...), grace: time.Duration(pod.TerminationGracePeriodSeconds) * time.Second}
	env := map[string]string{}
	for _, e := range ct.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil {
			env[e.Name] = "a-secret"
		}
	}
	r.spec.Env, r.spec.ReadOnly = environ(im.env, env), ct.SecurityContext.ReadOnlyRootFilesystem
	mounted := map[string]bool{}
	for _, m := range ct.VolumeMounts {
		mounted[m.Name] = true
		for _, v := range pod.Volumes {
			dir := filepath.Join(t.TempDir(), v.Name)
			switch {
			case v.Name != m.Name:
				continue
			case v.EmptyDir != nil:
				r.spec.Tmpfs = append(r.spec.Tmpfs, m.MountPath)
				continue
			case v.ConfigMap != nil && v.ConfigMap.Name == k.config.Metadata.Name:
				if !m.ReadOnly {
					t.Errorf("%s is not mounted read-only", m.Name)
				}
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				for name, text := range k.config.Data {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			case v.PersistentVolumeClaim == nil || v.PersistentVolumeClaim.ClaimName != k.claim.Metadata.Name:
				t.Fatalf("the volume %s is of nothing that the file has", v.Name)
			}
			r.spec.Mounts = append(r.spec.Mounts, mount{Source: dir, Target: m.MountPath, ReadOnly: m.ReadOnly})
		}
	}
	for _, v := range pod.Volumes {
		if !mounted[v.Name] {
			t.Errorf("the volume %s is not mounted", v.Name)
		}
	}
	of := func(p kubeProbe) probe {
		out := probe{period: time.Duration(p.PeriodSeconds) * time.Second, timeout: time.Duration(p.TimeoutSeconds) * time.Second, tries: max(p.FailureThreshold, 3)}
		switch {
		case p.Exec != nil:
			out.exec = p.Exec.Command
		case p.HTTPGet != nil:
			out.path = p.HTTPGet.Path
		}
		return out
	}
	r.startup, r.readiness, r.liveness = of(ct.StartupProbe), of(ct.ReadinessProbe), of(ct.LivenessProbe)
	return r
}

func TestImageRunsAsTheFilesSay(t *testing.T) {
	im := readImage(t)
	for name, as := range map[string]func(*testing.T) run{
		"compose":    func(t *testing.T) run { return asCompose(t, im, map[string]string{"OPENAI_API_KEY": "a-secret"}) },
		"Kubernetes": func(t *testing.T) run { return asKubernetes(t, im) },
	} {
		t.Run(name, func(t *testing.T) { runs(t, im, as(t)) })
	}
}

func runs(t *testing.T, im image, r run) {
	for _, m := range r.spec.Mounts {
		for _, dir := range []string{m.Source, filepath.Join(r.spec.Root, m.Target)} { // as engines do
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	var uid, gid int
	if _, err := fmt.Sscanf(im.user, "%d:%d", &uid, &gid); err != nil {
		t.Fatal(err)
	}
	c := startContainer(t, r.spec, uid, gid)

	var inForce struct {
		DataDir     string `json:"data_dir"`
		Listen      string `json:"listen"`
		StopTimeout string `json:"stop_timeout"`
	}
	c.ok("orchestrator", "config", "check")
	if err := json.Unmarshal([]byte(c.ok("orchestrator", "config", "print", "-o", "json")), &inForce); err != nil {
		t.Fatal(err)
	}
	if inForce.DataDir != im.volumes[0] {
		t.Errorf("the database is kept in %s, the image's volume is %s", inForce.DataDir, im.volumes[0])
	}
	// What comes in has five seconds to be answered, and what runs stop_timeout to stop.
	if least := duration(t, inForce.StopTimeout) + 5*time.Second; r.grace < least {
		t.Errorf("it is killed %s after it is told to stop, and may need %s", r.grace, least)
	}
	_, port, _ := strings.Cut(inForce.Listen, ":")

	for life := range 2 {
		if res := c.do(order{Start: r.args}); res.Problem != "" {
			t.Fatal(res.Problem)
		}
		c.comesUp(r.startup, port)
		c.comesUp(r.readiness, port)
		if !c.probe(r.liveness, port) {
			t.Error("it is up and doesn't live")
		}
		if out := c.ok("orchestrator", "health"); out != "ok\n" {
			t.Errorf("health prints %q", out)
		}
		if life == 0 {
			besideServe(t, c, port)
		}
		res := c.do(order{Signal: int(syscall.SIGTERM), Seconds: r.grace.Seconds()})
		if res.Problem != "" || res.Code != 0 {
			t.Fatalf("told to stop: exit code %d %s\n%s", res.Code, res.Problem, res.Stderr)
		}
		t.Logf("stopped after %s of %s", res.Took, r.grace)
		if strings.Contains(res.Stderr, "a-secret") {
			t.Errorf("the key is in the log:\n%s", res.Stderr)
		}
	}
	if c.probe(r.liveness, port) {
		t.Error("it lives after it was stopped")
	}
}

// besideServe does what the files say can be done while serve runs, and what must not work. It leaves a turn running.
func besideServe(t *testing.T, c *container, port string) {
	t.Helper()
	c.ok("orchestrator", "peers", "list")
	c.ok("orchestrator", "sessions", "list")
	c.ok("orchestrator", "backup", "/data/copy.db")
	c.ok("orchestrator", "backup", "/tmp/copy.db")
	for _, place := range []string{"/copy.db", "/etc/orchestrator/copy.db", "/usr/local/bin/copy.db"} {
		if res := c.do(order{Run: []string{"orchestrator", "backup", place}}); res.Code == 0 || !strings.Contains(res.Stderr, "read-only file system") {
			t.Errorf("backup %s: exit code %d, message %q, want that the file system is read-only", place, res.Code, res.Stderr)
		}
	}
	if res := c.do(order{Run: []string{"orchestrator", "serve"}}); res.Code != 3 || !strings.Contains(res.Stderr, "is in use by process") {
		t.Errorf("a second serve: exit code %d, message %q", res.Code, res.Stderr)
	}

	api := "http://127.0.0.1:" + port
	if res := c.do(order{Method: http.MethodGet, URL: api + "/metrics"}); res.Code != http.StatusOK {
		t.Errorf("/metrics answers %d %s", res.Code, res.Problem)
	}
	if res := c.do(order{Method: http.MethodGet, URL: api + "/v1/sessions"}); res.Code != http.StatusUnauthorized {
		t.Errorf("without a key the session API answers %d %s", res.Code, res.Problem)
	}
	header := map[string]string{"Authorization": "Bearer " + strings.TrimSpace(c.ok("orchestrator", "keys", "create", "me")), "Content-Type": "application/json"}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C { // a new key is known within a second
		res := c.do(order{Method: http.MethodGet, URL: api + "/v1/sessions", Header: header})
		if res.Code == http.StatusOK {
			break
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("with a key the session API answers %d %s", res.Code, res.Stdout)
		}
	}
	res := c.do(order{Method: http.MethodPost, URL: api + "/v1/sessions", Header: header, Body: "{}"})
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(res.Stdout), &made); err != nil || made.ID == "" {
		t.Fatalf("a new session: %d %s %v", res.Code, res.Stdout, err)
	}
	// Its model can't be reached from here, so it is tried again and again.
	res = c.do(order{Method: http.MethodPost, URL: api + "/v1/sessions/" + made.ID + "/turns", Header: header, Body: `{"input": "What now?"}`})
	if res.Code < 200 || res.Code > 299 {
		t.Errorf("a turn: %d %s", res.Code, res.Stdout)
	}
}

func TestComposeWithAPasswordHasABroker(t *testing.T) {
	im := readImage(t)
	r := asCompose(t, im, map[string]string{"OPENAI_API_KEY": "a-secret", "RABBITMQ_PASSWORD": "another-secret"})
	broker := readCompose(t).Services["rabbitmq"]
	if broker.Environment["RABBITMQ_DEFAULT_USER"] != "orchestrator" || interpolated(t, broker.Environment["RABBITMQ_DEFAULT_PASS"], map[string]string{"RABBITMQ_PASSWORD": "p"}) != "p" {
		t.Errorf("the broker's user is %v", broker.Environment)
	}
	cmd := exec.Command(build(t), "config", "print", "-o", "json")
	cmd.Env, cmd.Dir = r.spec.Env, t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var inForce struct {
		Queue struct {
			URLEnv     string `json:"url_env"`
			ReplyQueue string `json:"reply_queue"`
		} `json:"queue"`
	}
	if err := json.Unmarshal(out, &inForce); err != nil {
		t.Fatal(err)
	}
	if q := inForce.Queue; q.URLEnv != "BROKER_URL" || q.ReplyQueue != "a2a.replies.compose" {
		t.Errorf("the broker in force is %+v", q)
	}
	if !strings.Contains(strings.Join(r.spec.Env, "\n"), "BROKER_URL=amqp://orchestrator:another-secret@rabbitmq:5672/") {
		t.Errorf("the environment is %q", r.spec.Env)
	}
	if strings.Contains(string(out), "secret") {
		t.Errorf("config print tells secrets:\n%s", out)
	}
}
