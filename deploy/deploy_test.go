// Package deploy_test reads the files of this folder strictly and does without a container engine what an engine would do
// with them: it builds the binary as the Dockerfile says, and runs it on a read-only file system that has nothing else, as
// the user, with the variables, mounts and probes that the files name.
package deploy_test

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) != "" {
		os.Exit(inside())
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(built.dir); err != nil && built.dir != "" {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}))
}

// instruction is one of a Dockerfile.
type instruction struct {
	name string // FROM
	args string // on one line
}

// stage is what stands between two FROMs.
type stage struct {
	base, name   string
	instructions []instruction
}

// image is what the Dockerfile makes of its last stage.
type image struct {
	env         map[string]string
	user        string
	entrypoint  []string
	cmd         []string
	healthcheck []string
	interval    time.Duration
	timeout     time.Duration
	startPeriod time.Duration
	stopSignal  string
	exposed     []string
	volumes     []string
	copied      map[string]string // where in the image → where in the stage before
}

// readDockerfile reads the file. An instruction that it doesn't know fails the test.
func readDockerfile(t *testing.T) []stage {
	t.Helper()
	data, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	known := []string{"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
	var stages []stage
	text := strings.ReplaceAll(string(data), "\\\n", " ")
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, args, _ := strings.Cut(line, " ")
		args = strings.TrimSpace(args)
		switch {
		case !slices.Contains(known, name):
			t.Fatalf("Dockerfile: %q is no instruction", name)
		case args == "":
			t.Fatalf("Dockerfile: %s says nothing", name)
		case name == "FROM":
			f := strings.Fields(args)
			s := stage{base: f[0]}
			if len(f) == 3 && f[1] == "AS" {
				s.name = f[2]
			} else if len(f) != 1 {
				t.Fatalf("Dockerfile: FROM %s can't be read", args)
			}
			stages = append(stages, s)
		case len(stages) == 0:
			t.Fatalf("Dockerfile: %s stands before FROM", name)
		default:
			s := &stages[len(stages)-1]
			s.instructions = append(s.instructions, instruction{name, args})
		}
	}
	if len(stages) != 2 || stages[0].name != "build" {
		t.Fatalf("Dockerfile has the stages %+v, want one that builds and the image", stages)
	}
	return stages
}

// flags takes the --name=value in front of an instruction's arguments.
func flags(args string) (values map[string]string, rest []string) {
	values = map[string]string{}
	rest = strings.Fields(args)
	for len(rest) > 0 && strings.HasPrefix(rest[0], "--") {
		name, value, _ := strings.Cut(rest[0][2:], "=")
		values[name], rest = value, rest[1:]
	}
	return values, rest
}

func execForm(t *testing.T, args string) (out []string) {
	t.Helper()
	if err := json.Unmarshal([]byte(args), &out); err != nil || len(out) == 0 {
		t.Fatalf("Dockerfile: %s is not in exec form, which is the only one without a shell", args)
	}
	return out
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// readImage returns what the last stage makes.
func readImage(t *testing.T) image {
	t.Helper()
	im := image{env: map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, copied: map[string]string{}}
	for _, in := range readDockerfile(t)[1].instructions {
		switch in.name {
		case "COPY":
			opts, f := flags(in.args)
			if opts["from"] != "build" || len(f) != 2 {
				t.Fatalf("Dockerfile: COPY %s doesn't come from the build", in.args)
			}
			im.copied[f[1]] = f[0]
		case "ENV":
			name, value, ok := strings.Cut(in.args, "=")
			if !ok || strings.ContainsAny(value, " \"'$") {
				t.Fatalf("Dockerfile: ENV %s is not one NAME=value", in.args)
			}
			im.env[name] = value
		case "USER":
			im.user = in.args
		case "VOLUME":
			im.volumes = append(im.volumes, in.args)
		case "EXPOSE":
			im.exposed = append(im.exposed, in.args)
		case "STOPSIGNAL":
			im.stopSignal = in.args
		case "ENTRYPOINT":
			im.entrypoint = execForm(t, in.args)
		case "CMD":
			im.cmd = execForm(t, in.args)
		case "HEALTHCHECK":
			opts, _ := flags(in.args)
			_, command, ok := strings.Cut(in.args, "CMD ")
			if !ok {
				t.Fatalf("Dockerfile: HEALTHCHECK %s has no CMD", in.args)
			}
			im.healthcheck = execForm(t, command)
			im.interval, im.timeout, im.startPeriod = duration(t, opts["interval"]), duration(t, opts["timeout"]), duration(t, opts["start-period"])
		default:
			t.Fatalf("Dockerfile: the image needs %s %s, which can't be checked", in.name, in.args)
		}
	}
	return im
}

// compose is as much of a compose file as ours has. A key that isn't here is a mistake, or has to be added, as the Compose
// Specification has it.
type compose struct {
	Services map[string]service        `yaml:"services"`
	Volumes  map[string]map[string]any `yaml:"volumes"`
}

type service struct {
	Build struct {
		Context    string `yaml:"context"`
		Dockerfile string `yaml:"dockerfile"`
	} `yaml:"build"`
	Image           string            `yaml:"image"`
	Profiles        []string          `yaml:"profiles"`
	Environment     map[string]string `yaml:"environment"`
	Ports           []string          `yaml:"ports"`
	Volumes         []string          `yaml:"volumes"`
	ReadOnly        bool              `yaml:"read_only"`
	Tmpfs           []string          `yaml:"tmpfs"`
	User            string            `yaml:"user"`
	CapDrop         []string          `yaml:"cap_drop"`
	SecurityOpt     []string          `yaml:"security_opt"`
	Restart         string            `yaml:"restart"`
	StopGracePeriod string            `yaml:"stop_grace_period"`
	Healthcheck     *struct {
		Test     []string `yaml:"test"`
		Interval string   `yaml:"interval"`
		Timeout  string   `yaml:"timeout"`
		Retries  int      `yaml:"retries"`
	} `yaml:"healthcheck"`
}

// strictly decodes one YAML document, in which every key is known and none stands twice.
func strictly(t *testing.T, what string, data []byte, into any) {
	t.Helper()
	dec := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := dec.Decode(into); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Fatalf("%s: there is more than one document (%v)", what, err)
	}
}

func readCompose(t *testing.T) compose {
	t.Helper()
	data, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c compose
	strictly(t, "compose.yaml", data, &c)
	return c
}

// interpolated replaces ${NAME:-default} and ${NAME:+text} as compose does.
func interpolated(t *testing.T, text string, env map[string]string) string {
	t.Helper()
	out := regexp.MustCompile(`\$\{([A-Z_]+):([-+])([^}]*)\}`).ReplaceAllStringFunc(text, func(ref string) string {
		m := regexp.MustCompile(`\$\{([A-Z_]+):([-+])([^}]*)\}`).FindStringSubmatch(ref)
		switch set := env[m[1]] != ""; {
		case m[2] == "-" && set:
			return env[m[1]]
		case m[2] == "-" || set:
			return m[3]
		}
		return ""
	})
	if strings.Contains(out, "$") {
		t.Fatalf("compose.yaml: %q can't be interpolated", text)
	}
	return out
}

type metadata struct {
	Name   string            `yaml:"name"`
	Labels map[string]string `yaml:"labels"`
}

type Head struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   metadata `yaml:"metadata"`
}

// The kinds of Kubernetes' objects, as much of them as ours have. A key that isn't here is a mistake, or has to be added,
// as the reference of Kubernetes has it.
type (
	configMap struct {
		Head `yaml:",inline"`
		Data map[string]string `yaml:"data"`
	}
	volumeClaim struct {
		Head `yaml:",inline"`
		Spec struct {
			AccessModes []string `yaml:"accessModes"`
			Resources   struct {
				Requests map[string]string `yaml:"requests"`
			} `yaml:"resources"`
		} `yaml:"spec"`
	}
	kubeService struct {
		Head `yaml:",inline"`
		Spec struct {
			Selector map[string]string `yaml:"selector"`
			Ports    []struct {
				Name       string `yaml:"name"`
				Port       int    `yaml:"port"`
				TargetPort string `yaml:"targetPort"`
			} `yaml:"ports"`
		} `yaml:"spec"`
	}
	deployment struct {
		Head `yaml:",inline"`
		Spec struct {
			Replicas int `yaml:"replicas"`
			Strategy struct {
				Type string `yaml:"type"`
			} `yaml:"strategy"`
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			} `yaml:"selector"`
			Template struct {
				Metadata metadata `yaml:"metadata"`
				Spec     podSpec  `yaml:"spec"`
			} `yaml:"template"`
		} `yaml:"spec"`
	}
	podSpec struct {
		TerminationGracePeriodSeconds int   `yaml:"terminationGracePeriodSeconds"`
		AutomountServiceAccountToken  *bool `yaml:"automountServiceAccountToken"`
		EnableServiceLinks            *bool `yaml:"enableServiceLinks"`
		SecurityContext               struct {
			RunAsNonRoot   bool `yaml:"runAsNonRoot"`
			RunAsUser      int  `yaml:"runAsUser"`
			RunAsGroup     int  `yaml:"runAsGroup"`
			FSGroup        int  `yaml:"fsGroup"`
			SeccompProfile struct {
				Type string `yaml:"type"`
			} `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		Containers []kubeContainer `yaml:"containers"`
		Volumes    []struct {
			Name                  string `yaml:"name"`
			PersistentVolumeClaim *struct {
				ClaimName string `yaml:"claimName"`
			} `yaml:"persistentVolumeClaim"`
			ConfigMap *struct {
				Name string `yaml:"name"`
			} `yaml:"configMap"`
			EmptyDir *struct{} `yaml:"emptyDir"`
		} `yaml:"volumes"`
	}
	kubeContainer struct {
		Name  string   `yaml:"name"`
		Image string   `yaml:"image"`
		Args  []string `yaml:"args"`
		Env   []struct {
			Name      string `yaml:"name"`
			Value     string `yaml:"value"`
			ValueFrom *struct {
				SecretKeyRef struct {
					Name string `yaml:"name"`
					Key  string `yaml:"key"`
				} `yaml:"secretKeyRef"`
			} `yaml:"valueFrom"`
		} `yaml:"env"`
		Ports []struct {
			Name          string `yaml:"name"`
			ContainerPort int    `yaml:"containerPort"`
		} `yaml:"ports"`
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct {
				Drop []string `yaml:"drop"`
			} `yaml:"capabilities"`
		} `yaml:"securityContext"`
		Resources struct {
			Requests map[string]string `yaml:"requests"`
			Limits   map[string]string `yaml:"limits"`
		} `yaml:"resources"`
		StartupProbe   kubeProbe `yaml:"startupProbe"`
		ReadinessProbe kubeProbe `yaml:"readinessProbe"`
		LivenessProbe  kubeProbe `yaml:"livenessProbe"`
		VolumeMounts   []struct {
			Name      string `yaml:"name"`
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	kubeProbe struct {
		HTTPGet *struct {
			Path string `yaml:"path"`
			Port string `yaml:"port"`
		} `yaml:"httpGet"`
		Exec *struct {
			Command []string `yaml:"command"`
		} `yaml:"exec"`
		PeriodSeconds    int `yaml:"periodSeconds"`
		TimeoutSeconds   int `yaml:"timeoutSeconds"`
		FailureThreshold int `yaml:"failureThreshold"`
	}
)

// kubernetes is the manifest.
type kubernetes struct {
	text    string
	config  configMap
	claim   volumeClaim
	service kubeService
	deploy  deployment
}

func readKubernetes(t *testing.T) kubernetes {
	t.Helper()
	data, err := os.ReadFile("kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	k := kubernetes{text: string(data)}
	into := map[string]any{
		"v1 ConfigMap": &k.config, "v1 PersistentVolumeClaim": &k.claim, "v1 Service": &k.service, "apps/v1 Deployment": &k.deploy,
	}
	for doc := range strings.SplitSeq(k.text, "\n---\n") {
		var h Head
		if err := yaml.Unmarshal([]byte(doc), &h); err != nil {
			t.Fatalf("kubernetes.yaml: %v", err)
		}
		what := h.APIVersion + " " + h.Kind
		target, ok := into[what]
		if !ok {
			t.Fatalf("kubernetes.yaml: %s is not known, or there twice", what)
		}
		delete(into, what)
		strictly(t, "kubernetes.yaml, "+what, []byte(doc), target)
		if h.Metadata.Name != "orchestrator" {
			t.Errorf("%s is named %q", what, h.Metadata.Name)
		}
	}
	if len(into) > 0 {
		t.Fatalf("kubernetes.yaml has no %v", slices.Sorted(maps.Keys(into)))
	}
	return k
}

const testVersion = "v0.0.0-deploytest"

// built is the binary that all tests use.
var built struct {
	once sync.Once
	dir  string
	file string // empty: it could not be built
}

// build runs the Dockerfile's go build on what the build gets to see, and returns the binary.
func build(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		dir, err := os.MkdirTemp("", "orchestrator-deploy-")
		if err != nil {
			t.Fatal(err)
		}
		built.dir = dir
		src, file := filepath.Join(dir, "src"), filepath.Join(dir, "orchestrator")
		copyContext(t, src)
		command := ""
		for _, in := range readDockerfile(t)[0].instructions {
			if in.name == "RUN" && strings.Contains(in.args, "go build") {
				command = in.args
			}
		}
		out := readImage(t).copied["/usr/local/bin/orchestrator"]
		if command == "" || !strings.Contains(command, "-o "+out+" ") {
			t.Fatalf("Dockerfile: %q doesn't build what is copied, %q", command, out)
		}
		cmd := exec.Command("sh", "-c", strings.Replace(command, "-o "+out+" ", "-o "+file+" ", 1))
		cmd.Dir, cmd.Env = src, append(os.Environ(), "VERSION="+testVersion)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, said)
		}
		built.file = file
	})
	if built.file == "" {
		t.Fatal("the binary could not be built")
	}
	return built.file
}

// copyContext copies what COPY . . does: the repository without what Dockerfile.dockerignore names.
func copyContext(t *testing.T, to string) {
	t.Helper()
	data, err := os.ReadFile("Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	ignored := func(name string) bool {
		for pattern := range strings.FieldsSeq(string(data)) {
			if anywhere, ok := strings.CutPrefix(pattern, "**/"); ok && path.Base(name) == anywhere || name == pattern {
				return true
			}
		}
		return false
	}
	root := os.DirFS("..")
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ignored(name):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		data, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), data, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestImageIsBuiltWithTheGoOfTheModule(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(mod)
	if want == nil {
		t.Fatal("go.mod names no version of Go")
	}
	if got := readDockerfile(t)[0].base; !strings.HasPrefix(got, "golang:"+string(want[1])+"-") {
		t.Errorf("the image is built on %s, want the Go of go.mod, %s", got, want[1])
	}
}

func TestBinaryOfTheImageNeedsNothingElse(t *testing.T) {
	file := build(t)
	if runtime.GOOS != "linux" {
		t.Skip("an image is Linux's: its binary is looked at there")
	}
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary has a %v: it is not static, and the image has no libraries", p.Type)
		}
	}
	out, err := exec.Command(file, "version").Output()
	if err != nil || !strings.Contains(string(out), testVersion) {
		t.Errorf("version prints %q (%v), want the one it was built with, %s", out, err, testVersion)
	}
}

func TestFilesAgreeOnTheImage(t *testing.T) {
	im, c, k := readImage(t), readCompose(t), readKubernetes(t)
	ours, pod := c.Services["orchestrator"], k.deploy.Spec.Template.Spec
	if len(pod.Containers) != 1 {
		t.Fatalf("the pod has %d containers", len(pod.Containers))
	}
	ct := pod.Containers[0]
	if ours.Build.Dockerfile != "deploy/Dockerfile" || ours.Build.Context != ".." {
		t.Errorf("compose builds %+v", ours.Build)
	}
	if got, _, _ := strings.Cut(ct.Image, ":"); got != ours.Image {
		t.Errorf("Kubernetes runs %s, compose %s", ct.Image, ours.Image)
	}
	user, group, _ := strings.Cut(im.user, ":")
	if user == "" || user == "0" || user == "root" {
		t.Errorf("the image runs as %q, want a number that isn't root's", im.user)
	}
	security := pod.SecurityContext
	if got := fmt.Sprintf("%d:%d", security.RunAsUser, security.RunAsGroup); ours.User != im.user || got != im.user {
		t.Errorf("the image runs as %s, compose as %s, Kubernetes as %s", im.user, ours.User, got)
	}
	if fmt.Sprint(security.FSGroup) != group || !security.RunAsNonRoot || security.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("the pod's security context is %+v", security)
	}
	if s := ct.SecurityContext; !s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("the container's security context is %+v", s)
	}
	if !ours.ReadOnly || !slices.Equal(ours.CapDrop, []string{"ALL"}) || !slices.Contains(ours.SecurityOpt, "no-new-privileges:true") {
		t.Errorf("compose runs it with read_only %v, cap_drop %v, security_opt %v", ours.ReadOnly, ours.CapDrop, ours.SecurityOpt)
	}
	if im.stopSignal != "SIGTERM" {
		t.Errorf("the image is stopped with %s, which serve doesn't take for a stop", im.stopSignal)
	}
	if im.entrypoint[0] != "/usr/local/bin/orchestrator" || im.healthcheck[0] != im.entrypoint[0] || im.copied[im.entrypoint[0]] == "" {
		t.Errorf("the image runs %v and probes with %v, and has %v", im.entrypoint, im.healthcheck, im.copied)
	}
	if !slices.Equal(ct.Args, im.cmd) {
		t.Errorf("Kubernetes runs %v, the image %v", ct.Args, im.cmd)
	}
	// SQLite: one process, one volume that one node holds.
	if d := k.deploy.Spec; d.Replicas != 1 || d.Strategy.Type != "Recreate" || !slices.Equal(k.claim.Spec.AccessModes, []string{"ReadWriteOnce"}) {
		t.Errorf("the deployment has %d replicas, strategy %s, and a volume %v", d.Replicas, d.Strategy.Type, k.claim.Spec.AccessModes)
	}
	for what, labels := range map[string]map[string]string{"the deployment": k.deploy.Spec.Selector.MatchLabels, "the service": k.service.Spec.Selector} {
		if len(labels) == 0 || !maps.Equal(labels, k.deploy.Spec.Template.Metadata.Labels) {
			t.Errorf("%s selects %v, the pod has %v", what, labels, k.deploy.Spec.Template.Metadata.Labels)
		}
	}
	for _, e := range ct.Env {
		if e.ValueFrom == nil {
			continue
		}
		ref := e.ValueFrom.SecretKeyRef
		if want := fmt.Sprintf("kubectl create secret generic %s --from-literal=%s=", ref.Name, ref.Key); !strings.Contains(k.text, want) {
			t.Errorf("the secret %s with key %s is not in the file, and the file doesn't say %q", ref.Name, ref.Key, want)
		}
	}
}

func TestPortsAreTheOneThatServeListensOn(t *testing.T) {
	im, ours, k := readImage(t), readCompose(t).Services["orchestrator"], readKubernetes(t)
	_, port, ok := strings.Cut(im.env["ORCHESTRATOR_LISTEN"], ":")
	if !ok || !slices.Equal(im.exposed, []string{port}) {
		t.Fatalf("the image listens on %q and exposes %v", im.env["ORCHESTRATOR_LISTEN"], im.exposed)
	}
	if want := []string{"127.0.0.1:" + port + ":" + port}; !slices.Equal(ours.Ports, want) {
		t.Errorf("compose publishes %v, want %v: on this machine only", ours.Ports, want)
	}
	ct := k.deploy.Spec.Template.Spec.Containers[0]
	if len(ct.Ports) != 1 || fmt.Sprint(ct.Ports[0].ContainerPort) != port {
		t.Fatalf("the container has the ports %+v, want %s", ct.Ports, port)
	}
	if s := k.service.Spec.Ports; len(s) != 1 || s[0].TargetPort != ct.Ports[0].Name || fmt.Sprint(s[0].Port) != port {
		t.Errorf("the service has the ports %+v, the container %+v", s, ct.Ports)
	}
	for name, p := range map[string]kubeProbe{"startup": ct.StartupProbe, "readiness": ct.ReadinessProbe, "liveness": ct.LivenessProbe} {
		if p.HTTPGet == nil || p.HTTPGet.Port != ct.Ports[0].Name {
			t.Errorf("the %s probe asks %+v, want the port %s", name, p.HTTPGet, ct.Ports[0].Name)
		}
	}
}

func TestServicesBesideAreOnlyThereWhenTheyAreWanted(t *testing.T) {
	c := readCompose(t)
	for name, profile := range map[string]string{"rabbitmq": "queue", "postgres": "postgres"} {
		s, ok := c.Services[name]
		if !ok || !slices.Equal(s.Profiles, []string{profile}) || s.Image == "" {
			t.Errorf("%s is %+v, want an image of the profile %s", name, s, profile)
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s publishes %s to the world", name, p)
			}
		}
	}
	used := map[string]bool{}
	for name, s := range c.Services {
		for _, v := range s.Volumes {
			volume, _, _ := strings.Cut(v, ":")
			if _, ok := c.Volumes[volume]; !ok {
				t.Errorf("%s mounts %s, which compose.yaml doesn't have", name, volume)
			}
			used[volume] = true
		}
	}
	for v := range c.Volumes {
		if !used[v] {
			t.Errorf("the volume %s is not used", v)
		}
	}
}
