package scripted_test

import (
	"context"
	"fmt"

	"orchestrator/llm"
	"orchestrator/llm/scripted"
)

func Example() {
	model, err := scripted.Parse("greeter.yaml", []byte(`
agents:
  - name: greeter
    rules:
      - match: 'I am (?<who>\w+)'
        text: "Hello ${who}, let me look."
        tool_calls:
          - name: lookup
            args: {name: "${who}", limit: 3}
      - tool: lookup
        match: '(?s).*'
        history: 'I am (?<who>\w+)'
        text: "${who}: $0"
`))
	if err != nil {
		fmt.Println(err)
		return
	}

	req := llm.Request{Agent: "greeter", Messages: []llm.Message{{Role: llm.RoleUser, Text: "Hi, I am Ada."}}}
	for range 2 {
		var a llm.Assembler
		for chunk, err := range model.Stream(context.Background(), req) {
			if err != nil {
				fmt.Println(err)
				return
			}
			a.Add(chunk)
		}
		answer := a.Answer()
		fmt.Println(answer.Stop, "|", answer.Text)
		for _, call := range answer.ToolCalls {
			fmt.Printf("%s %s\n", call.Name, call.Args)
			req.Messages = append(req.Messages,
				llm.Message{Role: llm.RoleAssistant, Text: answer.Text, ToolCalls: answer.ToolCalls},
				llm.Message{Role: llm.RoleTool, ToolName: call.Name, Text: "mathematician, born 1815"},
			)
		}
	}
	// Output:
	// tool_calls | Hello Ada, let me look.
	// lookup {"limit":3,"name":"Ada"}
	// end_turn | Ada: mathematician, born 1815
}
