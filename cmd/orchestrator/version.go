package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// buildInfo is what is known of this program's making.
type buildInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"` // of the commit
	Modified bool   `json:"modified"`       // there were changes that no commit has
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// readBuildInfo returns the linker's version, else the module's, and what the go command has noted.
func readBuildInfo() buildInfo {
	b := buildInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; version == "dev" && v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// String returns it on one line.
func (b buildInfo) String() string {
	var about []string
	if b.Commit != "" {
		commit := "commit " + b.Commit[:min(len(b.Commit), 12)]
		if b.Modified {
			commit += " with changes"
		}
		about = append(about, commit)
	}
	if b.Time != "" {
		about = append(about, b.Time)
	}
	return fmt.Sprintf("%s (%s)", b.Version, strings.Join(append(about, b.Go, b.Platform), ", "))
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Say which build of the program this is", Args: noArgs,
		Long: `version prints the version, the commit it was built from and when that was made, the version of Go, and the platform.`,
		Example: `  orchestrator version
  orchestrator version -o json | jq -r .commit`,
		RunE: func(*cobra.Command, []string) error {
			b := readBuildInfo()
			if c.output == outputJSON {
				return printJSON(c.stdout, b)
			}
			_, err := fmt.Fprintln(c.stdout, "orchestrator", b)
			return err
		},
	}
}
