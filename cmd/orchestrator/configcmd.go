package main

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"orchestrator/internal/app"
)

func (c *cli) configCommand() *cobra.Command {
	return group("config", "Check and print the configuration",
		&cobra.Command{
			Use: "check", Short: "Say whether the configuration can be used, and all that is wrong with it", Args: noArgs,
			Example: `  orchestrator config check --config /etc/orchestrator/orchestrator.yaml`,
			RunE:    func(cmd *cobra.Command, _ []string) error { return c.checkConfig(cmd) },
		},
		&cobra.Command{
			Use: "print", Short: "Print the configuration with all defaults filled in, without secrets", Args: noArgs,
			Example: `  orchestrator config print > orchestrator.yaml`,
			RunE:    func(cmd *cobra.Command, _ []string) error { return c.printConfig(cmd) },
		})
}

func (c *cli) checkConfig(cmd *cobra.Command) error {
	cfg, file, err := c.config(cmd)
	if err != nil {
		return err
	}
	if err := checkSecrets(cfg); err != nil {
		return configError{err}
	}
	if c.output == outputJSON {
		return printJSON(c.stdout, map[string]any{"ok": true, "file": file})
	}
	if file == "" {
		file = "no config file, defaults and environment:"
	}
	_, err = fmt.Fprintf(c.stdout, "%s ok: %s, %s, database %s\n", file,
		count(len(cfg.Models), "model"), count(len(cfg.Agents), "agent"), cfg.Store.Path)
	return err
}

// checkSecrets looks for every secret that the config names.
func checkSecrets(cfg app.Config) error {
	var faults []error
	for _, m := range cfg.Models {
		if _, err := m.APIKey(cfg.Getenv); err != nil {
			faults = append(faults, err)
		}
		if _, err := m.HeaderValues(cfg.Getenv); err != nil {
			faults = append(faults, err)
		}
	}
	if _, err := cfg.Queue.Broker(cfg.Getenv); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func (c *cli) printConfig(cmd *cobra.Command) error {
	cfg, file, err := c.config(cmd)
	if err != nil {
		return err
	}
	node := configNode(reflect.ValueOf(cfg))
	if c.output == outputJSON {
		var v map[string]any
		if err := node.Decode(&v); err != nil {
			return fmt.Errorf("print the configuration: %w", err)
		}
		return printJSON(c.stdout, v)
	}
	if file == "" {
		file = "no config file"
	}
	node.HeadComment = "from " + file + ", ORCHESTRATOR_ variables, flags and defaults"
	enc := yaml.NewEncoder(c.stdout)
	enc.SetIndent(2)
	if err := enc.Encode(node); err != nil {
		return fmt.Errorf("print the configuration: %w", err)
	}
	return enc.Close()
}

// configNode returns a config value as YAML in the order of its fields, without what could be secret.
func configNode(v reflect.Value) *yaml.Node {
	scalar := func(tag, text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text} }
	switch {
	case v.Type() == durationType:
		return scalar("!!str", formatDuration(time.Duration(v.Int())))
	case v.Kind() == reflect.Pointer:
		if v.IsNil() {
			return scalar("!!null", "null")
		}
		return configNode(v.Elem())
	case v.Kind() == reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range v.Seq2() {
			n.Content = append(n.Content, configNode(item))
		}
		if v.Len() == 0 {
			n.Style = yaml.FlowStyle
		}
		return n
	case v.Kind() == reflect.Struct:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for f, value := range v.Fields() {
			name := f.Tag.Get("mapstructure")
			if name == "-" {
				continue
			}
			item := configNode(value)
			if strings.HasSuffix(name, "url") {
				item.Value = redactURL(item.Value)
			}
			n.Content = append(n.Content, scalar("!!str", name), item)
		}
		return n
	case v.Kind() == reflect.Bool:
		return scalar("!!bool", strconv.FormatBool(v.Bool()))
	case v.CanInt():
		return scalar("!!int", strconv.FormatInt(v.Int(), 10))
	case v.CanFloat():
		return scalar("", strconv.FormatFloat(v.Float(), 'f', -1, 64))
	}
	n := scalar("!!str", v.String())
	if strings.Contains(n.Value, "\n") {
		n.Style = yaml.LiteralStyle
	}
	return n
}

// redactURL hides the values of a URL's query, where some servers want their key.
func redactURL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.RawQuery == "" {
		return text
	}
	query := u.Query()
	for name := range query {
		query.Set(name, "redacted")
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// formatDuration leaves out what is zero: 3m, not 3m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
