package transport

// A Language tells what a peer is written in, numbered as RocketMQ's
// LanguageCode. Unknown values are legal and kept.
type Language int8

// The languages RocketMQ knows.
const (
	Java Language = iota
	CPP
	DotNet
	Python
	Delphi
	Erlang
	Ruby
	Other
	HTTP
	Go
	PHP
	OMS
	Rust
	NodeJS
)

var languageNames = [...]string{"JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER",
	"HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"}

// String returns RocketMQ's name of the language, OTHER for one it has no name for.
func (l Language) String() string {
	if l >= 0 && int(l) < len(languageNames) {
		return languageNames[l]
	}
	return "OTHER"
}

// ParseLanguage returns the language of a name; text it does not know is Other.
func ParseLanguage(name string) Language {
	for i, n := range languageNames {
		if n == name {
			return Language(i)
		}
	}
	return Other
}

// A Codec says how the header of a frame is encoded: RocketMQ's serialize type.
type Codec uint8

// The header codecs. MsgPack is our own and is used only between our own ends,
// after both have agreed.
const (
	JSON     Codec = 0
	RocketMQ Codec = 1
	MsgPack  Codec = 2
)

// String returns the codec's name.
func (c Codec) String() string {
	switch c {
	case JSON:
		return "JSON"
	case RocketMQ:
		return "ROCKETMQ"
	case MsgPack:
		return "MSGPACK"
	}
	return "UNKNOWN"
}
