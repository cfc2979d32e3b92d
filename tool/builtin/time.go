package builtin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	_ "time/tzdata" // a container image often has no zone files

	"orchestrator/tool"
)

type currentTime struct{}

var _ tool.Tool = currentTime{}

// Spec implements [tool.Tool].
func (currentTime) Spec() tool.Spec {
	return tool.Spec{
		Name:        "current_time",
		Source:      tool.SourceBuiltin,
		Description: describe("Says what day and time it is now, in UTC or in the time zone named."),
		Schema: json.RawMessage(`{
			"type": "object",
			"properties": {
				"timezone": {"type": "string", "description": "An IANA time zone such as Europe/Berlin. Defaults to UTC."}
			},
			"additionalProperties": false
		}`),
		Repeatable: true,
	}
}

// Run implements [tool.Tool].
func (currentTime) Run(_ context.Context, c *tool.Call) (tool.Result, error) {
	var args struct {
		Timezone string `json:"timezone"`
	}
	if err := decodeArgs(c, &args); err != nil {
		return tool.Failure(err.Error()), nil
	}
	zone, err := time.LoadLocation(args.Timezone)
	// "Local" is where the server happens to stand, which is nobody's question.
	if err != nil || zone == time.Local {
		return tool.Failure(fmt.Sprintf("there is no time zone %q; name it as the IANA database does, such as Europe/Berlin", args.Timezone)), nil
	}
	now := time.Now().In(zone)
	return tool.Text(fmt.Sprintf("%s, %s (%s)", now.Weekday(), now.Format(time.RFC3339), zone)), nil
}
