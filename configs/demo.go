package configs

import "embed"

// Demo holds the folder demo: the configuration, the peers and the script of the demonstration.
//
//go:embed demo
var Demo embed.FS
