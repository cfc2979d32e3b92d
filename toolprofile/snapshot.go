package toolprofile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"orchestrator/tool"
)

// Snapshot returns a table of every tool of the registry, by source and name, and what each profile by itself says of it:
// allow, ask, or "-" for what it may not call. It is committed and compared by a test, so that no tool comes to a role, or
// goes from it, without a person's edit.
func Snapshot(p *Profiles, registry []tool.Tool) string {
	rows := [][]string{append([]string{"source", "tool"}, p.Names()...)}
	tools := p.resolve(registry).tools
	slices.SortStableFunc(tools, func(a, b tool.Tool) int {
		x, y := a.Spec(), b.Spec()
		return cmp.Or(cmp.Compare(x.Source, y.Source), cmp.Compare(x.Name, y.Name))
	})
	for _, t := range tools {
		spec := t.Spec()
		row := []string{string(spec.Source), spec.Name}
		for _, pr := range p.list {
			d := p.decide(Subject{Agent: Agent{Profile: pr.name}}, spec.Name, spec.Source)
			switch {
			case d.Allowed:
				row = append(row, "allow")
			case d.Ask:
				row = append(row, "ask")
			default:
				row = append(row, "-")
			}
		}
		rows = append(rows, row)
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s  ", widths[i], cell)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
