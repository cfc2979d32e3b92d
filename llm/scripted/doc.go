// Package scripted is a language model that plays a script: offline, deterministic, without a key.
//
// The demo and the tests run on it. A script is a YAML file with a list of rules for each agent. A call takes the first
// rule of its agent that matches, and what matches depends on the request alone, so a process that was killed and started
// again goes on where it was.
//
//	agents:
//	  - name: primary               # the agent's name in the config; the rules of "*" come after any agent's own
//	    rules:
//	      - position: 0
//	        match: 'compare (\w+) and (?<other>\w+)'
//	        text: "I ask about $1 and ${other}."
//	        tool_calls:
//	          - name: invoke_agent
//	            args: {agent_name: advisor, message: "What of $1?"}
//	      - tool: invoke_agent
//	        match: '(?s).*'
//	        history: 'compare (?<what>.+)'
//	        text: "On ${what}: $0"
//
// What a rule may ask for; all of it must hold, and a rule that asks for nothing always matches:
//
//   - match: a regular expression found in the last input. That is the last user message, or the results of the tools if
//     they are what came last, all of them in order, a line end between two.
//   - position: the number of assistant messages in the request. The first answer of a session has position 0.
//   - tool: the last input has a result of the tool of this name.
//   - history: a regular expression found in the conversation so far, which is the text of all user messages and tool
//     results, a line end between two; or a list of expressions, which must all be found. The leftmost match counts; an
//     expression that begins with (?s).* finds the last one.
//
// What a rule may give:
//
//   - latency: how long the model thinks before the first chunk, like 1.5s.
//   - chunk_delay: how long it waits before each further chunk. A chunk is a word.
//   - reasoning, text: what it says.
//   - tool_calls: a list of {name, args}; args is any YAML map.
//   - stop: end_turn, tool_calls, max_tokens or refusal. Defaults to tool_calls if there are any and to end_turn if not.
//   - error: {message, status, code, retryable, retry_after, overflow, times} ends the answer with an error, after the
//     text, if there is any. With times: n the rule no longer matches a request that it has failed n times, so the
//     rules below it are next. The count lives as long as the process.
//
// In reasoning, text, the error's message and every string inside args, $1 and ${1} are a group of match, $0 is all it
// found, ${name} is a named group of match or history, and $$ is a dollar sign. A group that took no part is empty.
//
// An unknown key, a group that no expression has, a bad expression and a bad duration are errors of [Parse] with file and
// line. A request for which there is no rule is an error of the call that prints what was asked. Usage is an estimate, a
// token for every four bytes.
package scripted
