package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
	"orchestrator/session"
)

// completion is what the shell offers for an argument or a flag. Whatever is wrong, it offers nothing.
type completion = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// complete lets the shell offer values for a flag.
func (c *cli) complete(cmd *cobra.Command, flag string, f completion) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(fmt.Sprintf("complete --%s of %s: %v", flag, cmd.Name(), err)) // there is no such flag, or it has one
	}
}

// firstArg offers values for the first argument only.
func firstArg(f completion) completion {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f(cmd, args, typed)
	}
}

func (c *cli) completePeers(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	_ = c.inspect(cmd, func(_ context.Context, a *app.App) error { // nothing is offered then
		for _, p := range a.Peers.Peers() {
			names = append(names, p.Name+"\t"+shortText(p.Description, 60))
		}
		return nil
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (c *cli) completeAgents(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	_ = c.inspect(cmd, func(_ context.Context, a *app.App) error { // nothing is offered then
		for _, agent := range a.Config().Agents {
			names = append(names, agent.Name+"\t"+shortText(agent.Description, 60))
		}
		return nil
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (c *cli) completeTools(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	_ = c.inspect(cmd, func(_ context.Context, a *app.App) error { // nothing is offered then
		for _, t := range a.Registry() {
			names = append(names, t.Spec().Name)
		}
		return nil
	})
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSessions offers the sessions, the newest first.
func (c *cli) completeSessions(cmd *cobra.Command, _ []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
	_ = c.readStore(cmd, func(ctx context.Context, _ app.Config, s session.Store) error { // nothing is offered then
		trees, err := s.Trees(ctx, 50)
		if err != nil {
			return err
		}
		for _, t := range trees {
			rec, err := s.Record(ctx, session.KindSession, string(t.ID))
			if err != nil {
				return err
			}
			var body session.SessionBody
			if err := rec.Decode(&body); err != nil {
				return err
			}
			ids = append(ids, string(t.ID)+"\t"+shortText(body.Title, 60))
		}
		return nil
	})
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeCalls offers the calls that can be cancelled.
func (c *cli) completeCalls(cmd *cobra.Command, args []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	_ = c.readStore(cmd, func(ctx context.Context, _ app.Config, s session.Store) error { // nothing is offered then
		rows, err := callRows(ctx, s, session.RecordQuery{Kind: session.KindCall, States: wantedCalls})
		for _, r := range rows {
			ids = append(ids, string(r.ID)+"\t"+r.Peer+": "+shortText(r.Question, 50))
		}
		return err
	})
	return ids, cobra.ShellCompDirectiveNoFileComp
}
