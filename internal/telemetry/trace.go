package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TraceConfig configures where spans go.
type TraceConfig struct {
	// Endpoint is the URL of an OTLP collector, such as http://localhost:4318; spans are sent to /v1/traces below it.
	// Defaults to what the variables of OpenTelemetry say; when they say nothing there are no spans.
	Endpoint string
	// Version is our own.
	Version string
	// Getenv reads the environment. Required. The exporter reads further variables of OpenTelemetry from the process's.
	Getenv func(string) string
	// Logger is told when spans can't be sent. Required.
	Logger *slog.Logger
}

// NewTracing returns what makes spans, nil when none are asked for, and a function that sends what is left and stops,
// within its context. Nothing is connected yet when it returns; a collector that isn't there costs a warning in the log.
func NewTracing(ctx context.Context, cfg TraceConfig) (trace.TracerProvider, func(context.Context) error, error) {
	nothing := func(context.Context) error { return nil }
	env := cmp.Or(cfg.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), cfg.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if cfg.Getenv("OTEL_SDK_DISABLED") == "true" || cfg.Getenv("OTEL_TRACES_EXPORTER") == "none" || cfg.Endpoint == "" && env == "" {
		return nil, nothing, nil
	}
	var opts []otlptracehttp.Option
	if cfg.Endpoint != "" {
		u, err := url.Parse(cfg.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, nothing, fmt.Errorf("telemetry endpoint %q is not a URL such as http://localhost:4318", cfg.Endpoint)
		}
		opts = append(opts, otlptracehttp.WithEndpointURL(u.JoinPath("v1", "traces").String()))
	}
	exporter, err := otlptracehttp.New(ctx, opts...)
	if err != nil {
		return nil, nothing, fmt.Errorf("set up the export of spans: %w", err)
	}
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "orchestrator"), attribute.String("service.version", cfg.Version)),
		resource.WithFromEnv())
	if err != nil {
		return nil, nothing, fmt.Errorf("set up the export of spans: %w", err)
	}
	// The only way to hear of spans that weren't sent is the library's own, for the whole process.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { cfg.Logger.Warn("spans are lost", "err", err) }))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	return provider, provider.Shutdown, nil
}
