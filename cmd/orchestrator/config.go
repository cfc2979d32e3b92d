package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"orchestrator/internal/app"
)

const (
	envPrefix     = "ORCHESTRATOR_"
	maxConfigSize = 1 << 20
)

// configKeys are the keys of the config file.
var configKeys = keysOf(reflect.TypeFor[app.Config]())

// pathKeys hold paths. In the file they are relative to it; in a variable or a flag, to the working directory.
var pathKeys = []string{"data_dir", "store.path", "peers_file", "profiles_file", "queue.url_file"}

// flagKeys are the config keys that have a flag of their own.
var flagKeys = map[string]string{"data-dir": "data_dir", "log-level": "log.level", "log-format": "log.format", "listen": "listen"}

// loadConfig reads the config: file, then ORCHESTRATOR_ variables, then flags, the later one winning. It returns the
// completed config and the file it came from, "" if there was none.
func loadConfig(file string, environ []string, flags *pflag.FlagSet) (cfg app.Config, from string, err error) {
	env := environment(environ)
	file, err = findConfig(file, env)
	if err != nil {
		return cfg, "", err
	}
	v := viper.New()
	v.SetConfigType("yaml")
	if file != "" {
		if cfg.Dir, err = readConfigFile(v, file); err != nil {
			return cfg, file, err
		}
	}
	if err := applyEnvironment(v, env); err != nil {
		return cfg, file, err
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if name, ok := flagKeys[f.Name]; ok && f.Changed {
			setKey(v, name, f.Value.String())
		}
	})
	if err := v.UnmarshalExact(&cfg, viper.DecodeHook(mapstructure.StringToTimeDurationHookFunc())); err != nil {
		return cfg, file, configError{fmt.Errorf("read the configuration: %w", err)}
	}
	cfg.Getenv = func(name string) string { return env[name] }
	cfg, err = cfg.Complete()
	if err != nil {
		return cfg, file, configError{inFile(file, err)}
	}
	return cfg, file, nil
}

// findConfig returns the config file to read, or "".
func findConfig(file string, env map[string]string) (string, error) {
	if file == "" {
		file = env[envPrefix+"CONFIG"]
	}
	if file != "" {
		if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
			return "", withHint(configError{fmt.Errorf("config file %s doesn't exist", file)},
				"name another with --config, or leave it out: with OPENAI_API_KEY or ANTHROPIC_API_KEY set none is needed")
		}
		return file, nil
	}
	base := env["XDG_CONFIG_HOME"]
	if base == "" && env["HOME"] != "" {
		base = filepath.Join(env["HOME"], ".config")
	}
	candidates := []string{"orchestrator.yaml"}
	if filepath.IsAbs(base) {
		candidates = append(candidates, filepath.Join(base, "orchestrator", "orchestrator.yaml"))
	}
	for _, c := range candidates {
		if info, err := os.Stat(c); err == nil && !info.IsDir() {
			return c, nil
		}
	}
	return "", nil
}

// readConfigFile reads and checks a file and gives it to viper. It returns the file's folder.
func readConfigFile(v *viper.Viper, file string) (dir string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", configError{fmt.Errorf("open the config file: %w", err)}
	}
	defer f.Close() //nolint:errcheck // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxConfigSize+1))
	if err != nil {
		return "", configError{fmt.Errorf("read the config file: %w", err)}
	}
	if len(data) > maxConfigSize {
		return "", configError{fmt.Errorf("%s is larger than %d bytes; is it a config file?", file, maxConfigSize)}
	}
	if err := checkConfigText(file, data); err != nil {
		return "", configError{err}
	}
	if err := v.ReadConfig(bytes.NewReader(data)); err != nil {
		var parse viper.ConfigParseError
		if errors.As(err, &parse) {
			err = parse.Unwrap()
		}
		return "", configError{fmt.Errorf("%s: %w", file, err)}
	}
	return filepath.Dir(file), nil
}

// checkConfigText returns every key that is unknown and every value of the wrong type, with file and line.
func checkConfigText(file string, data []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil // an empty file is a config of defaults
	case err != nil:
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s:%d: the file must hold one YAML document", file, max(next.Line, 1))
	}
	// Decoding finds what the check below must not run into: an anchor inside itself, aliases that grow without bound.
	var whole any
	if err := doc.Decode(&whole); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var faults []error
	configKeys.check("", doc.Content[0], func(line int, message string) {
		faults = append(faults, fmt.Errorf("%s:%d: %s", file, line, message))
	})
	return errors.Join(faults...)
}

// serviceLinks are variables that Kubernetes sets in every pod beside a service called "orchestrator".
var serviceLinks = regexp.MustCompile(`^ORCHESTRATOR_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?)$`)

// testPrefix begins the variables by which tests find what they need, which a developer's shell may have.
const testPrefix = envPrefix + "TEST_"

// applyEnvironment sets the keys that ORCHESTRATOR_ variables name and refuses variables that name none.
func applyEnvironment(v *viper.Viper, env map[string]string) error {
	known := []string{envPrefix + "CONFIG", apiKeyVariable}
	byName := map[string]string{}
	leaves := map[string]key{}
	configKeys.leaves("", func(path string, k key) {
		name := envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
		known = append(known, name)
		byName[name], leaves[name] = path, k
	})
	var faults []error
	for name, value := range env {
		path, ok := byName[name]
		switch {
		case !strings.HasPrefix(name, envPrefix) || name == envPrefix+"CONFIG" || name == apiKeyVariable || value == "":
			continue
		case !ok && (serviceLinks.MatchString(name) || strings.HasPrefix(name, testPrefix)):
			continue
		case !ok:
			faults = append(faults, errors.New(unknownKey("variable", name, name, known)))
			continue
		}
		if message := checkText(name, leaves[name].leaf, value); message != "" {
			faults = append(faults, errors.New(message))
			continue
		}
		setKey(v, path, value)
	}
	if len(faults) > 0 {
		slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return configError{errors.Join(faults...)}
	}
	return nil
}

func setKey(v *viper.Viper, name, value string) {
	if slices.Contains(pathKeys, name) {
		if abs, err := filepath.Abs(value); err == nil {
			value = abs
		}
	}
	v.Set(name, value)
}

func environment(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok {
			env[name] = value
		}
	}
	return env
}

// inFile puts the file's name in front of every fault.
func inFile(file string, err error) error {
	if file == "" {
		return err
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return fmt.Errorf("%s: %w", file, err)
	}
	faults := joined.Unwrap()
	named := make([]error, len(faults))
	for i, fault := range faults {
		named[i] = fmt.Errorf("%s: %w", file, fault)
	}
	return errors.Join(named...)
}
