//! The rules of the settings: what each source may say, and which one wins.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use chappie_mesh::consensus::Voting;
use chappie_mesh::{InviteCode, fresh_invite};

use super::{
    CALL_BUDGET_DEFAULT, COOLDOWN_DEFAULT, Config, ConfigError, Invalid, JoinCode, LISTEN_DEFAULT, LISTEN_DEFAULT_V4,
    Layer, MCP_DEFAULT, SessionSpec, call_budget, connect, cooldown, device_name, listen,
    load::{Environment, load},
    mcp, name, session,
};

fn spec(dir: &str, name: Option<&str>) -> SessionSpec {
    SessionSpec { dir: dir.into(), name: name.map(str::to_owned) }
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn environment(pairs: &[(&str, &str)]) -> Environment {
    Environment { variables: variables(pairs), cwd: "/cwd".into(), host_name: "box".into() }
}

/// A whole invite code.
fn code() -> String {
    let (id, secret) = fresh_invite([5; 24]);
    let addresses = vec!["10.0.0.2:24274".to_owned()];
    InviteCode { mesh: [7; 16].into(), inviter: [8; 32].into(), addresses, id, secret }.to_string()
}

fn from_toml(text: &str) -> Result<Layer, ConfigError> {
    Layer::from_toml(text, Path::new("/h/config.toml"))
}

#[test]
fn nothing_said_gives_the_defaults() {
    let home = tempfile::tempdir().unwrap();
    let config = load(Layer::default(), home.path().to_owned(), &environment(&[])).unwrap();
    let expected = Config {
        home: home.path().to_owned(),
        name: "box".into(),
        sessions: Vec::new(),
        mcp: MCP_DEFAULT,
        listen: None,
        connect: Vec::new(),
        mdns: true,
        voter: Voting::Auto,
        join: None,
        json: false,
        cooldown: COOLDOWN_DEFAULT,
        call_budget: CALL_BUDGET_DEFAULT,
        log: None,
    };
    assert_eq!(config, expected);
    assert_eq!(config.mcp.to_string(), "127.0.0.1:24276");
    assert_eq!(
        (LISTEN_DEFAULT.to_string(), LISTEN_DEFAULT_V4.to_string()),
        ("[::]:24274".into(), "0.0.0.0:24274".into())
    );
    assert_eq!((config.cooldown.as_secs(), config.call_budget.as_secs()), (20, 45));
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let home = tempfile::tempdir().unwrap();
    let text = "name = 'file'\nmcp = '127.0.0.1:1'\ncooldown = 1\nlog = 'warn'\nsession = ['rel=a', '~/x', '/abs']\n";
    fs::write(home.path().join("config.toml"), text).unwrap();
    let env = environment(&[("CHAPPIE_NAME", "env"), ("CHAPPIE_MCP", "127.0.0.1:2"), ("HOME", "/u")]);
    let flags = Layer { name: Some("flag".into()), ..Layer::default() };
    let config = load(flags, home.path().to_owned(), &env).unwrap();
    assert_eq!(config.name, "flag");
    assert_eq!(config.mcp.port(), 2);
    assert_eq!(config.cooldown, Duration::from_secs(1));
    assert_eq!(config.log.as_deref(), Some("warn"));
    let rel = SessionSpec { dir: home.path().join("rel"), name: Some("a".into()) };
    assert_eq!(config.sessions, [rel, spec("/u/x", None), spec("/abs", None)]);
}

#[test]
fn a_list_of_sessions_replaces_the_one_below_and_is_relative_to_the_working_folder() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("config.toml"), "session = ['/file']").unwrap();
    let env = environment(&[("CHAPPIE_SESSION", "one=first:/two:")]);
    let config = load(Layer::default(), home.path().to_owned(), &env).unwrap();
    assert_eq!(config.sessions, [spec("/cwd/one", Some("first")), spec("/two", None)]);
    let flags = Layer { session: Some(vec![session(OsStr::new(".")).unwrap()]), ..Layer::default() };
    assert_eq!(load(flags, home.path().to_owned(), &env).unwrap().sessions, [spec("/cwd/.", None)]);
}

#[test]
fn every_setting_has_the_same_name_in_file_and_environment() {
    let code = code();
    let written = from_toml(&format!(
        "name = 'n'\nsession = ['/s=t']\nmcp = '[::1]:0'\nlisten = '[::]:0'\nconnect = ['a.b:1', '[::1]:2']\n\
         mdns = false\nvoter = 'never'\njoin = '{code}'\njson = true\ncooldown = 0\ncall_budget = 1.5\nlog = 'debug'"
    ));
    let pairs = [
        ("CHAPPIE_NAME", "n"),
        ("CHAPPIE_SESSION", "/s=t"),
        ("CHAPPIE_MCP", "[::1]:0"),
        ("CHAPPIE_LISTEN", "[::]:0"),
        ("CHAPPIE_CONNECT", "a.b:1, [::1]:2,"),
        ("CHAPPIE_NO_MDNS", "true"),
        ("CHAPPIE_VOTER", "never"),
        ("CHAPPIE_JOIN", &format!(" {code}\n")),
        ("CHAPPIE_JSON", "true"),
        ("CHAPPIE_COOLDOWN", "0"),
        ("CHAPPIE_CALL_BUDGET", "1.5"),
        ("CHAPPIE_LOG", "debug"),
    ];
    let set = Layer::from_variables(&variables(&pairs));
    assert_eq!(written, set);
    assert_eq!(set.as_ref().unwrap().voter, Some(Voting::Never));
    assert_eq!(set.unwrap().call_budget, Some(Duration::from_millis(1500)));
    assert_eq!(pairs.map(|(variable, _)| variable), super::VARIABLES);
}

#[test]
fn an_unknown_key_is_named_with_its_file() {
    let error = from_toml("name = 'n'\ncooldwn = 5\n").unwrap_err().to_string();
    assert!(error.contains("/h/config.toml") && error.contains("`cooldwn`") && error.contains("line 2"), "{error}");
    let error = Layer::from_variables(&variables(&[("CHAPPIE_COOLDWN", "5")])).unwrap_err();
    assert_eq!(error, ConfigError::Variable("CHAPPIE_COOLDWN".into()));
    assert!(error.to_string().contains("CHAPPIE_COOLDOWN"), "{error}");
    assert!(from_toml("home = '/x'").is_err(), "the file cannot say where the file is");
}

#[test]
fn wrong_types_broken_text_and_values_out_of_range_are_errors_that_name_the_place() {
    for text in ["name = 5", "session = '/a'", "json = 'yes'", "cooldown = '5'", "= 1", "name = 'a'\nname = 'b'"] {
        assert!(matches!(from_toml(text), Err(ConfigError::File { .. })), "{text}");
    }
    for (text, key) in [
        ("call_budget = 56", "call_budget"),
        ("call_budget = 0.5", "call_budget"),
        ("cooldown = -1", "cooldown"),
        ("cooldown = nan", "cooldown"),
        ("cooldown = inf", "cooldown"),
        ("name = ''", "name"),
        ("mcp = '0.0.0.0:1'", "mcp"),
        ("listen = 'laptop:1'", "listen"),
        ("connect = ['laptop']", "connect"),
        ("join = ''", "join"),
        ("session = ['']", "session"),
    ] {
        let error = from_toml(text).unwrap_err();
        assert!(matches!(&error, ConfigError::Value { key: found, .. } if *found == key), "{error}");
        assert!(error.to_string().contains("/h/config.toml"), "{error}");
    }
    let bytes = OsStr::from_bytes(b"\xff").to_owned();
    let error = Layer::from_variables(&[("CHAPPIE_NAME".into(), bytes)]).unwrap_err();
    assert!(error.to_string().contains("CHAPPIE_NAME in the environment"), "{error}");
}

#[test]
fn an_empty_variable_counts_as_not_set_and_foreign_ones_are_none_of_ours() {
    let pairs = [("CHAPPIE_NAME", ""), ("CHAPPIE_UNKNOWN", ""), ("CHAPPIEX", "1"), ("CHAPPIE_HOME", "/h")];
    assert_eq!(Layer::from_variables(&variables(&pairs)), Ok(Layer::default()));
}

#[test]
fn only_loopback_addresses_are_taken() {
    for good in ["127.0.0.1:0", "127.8.9.1:80", "[::1]:65535", "localhost:24276"] {
        assert!(mcp(good).is_ok(), "{good}");
    }
    for bad in ["0.0.0.0:1", "192.168.1.2:80", "[::]:1", "[2001:db8::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(matches!(mcp(bad), Err(Invalid::NotLoopback(_))), "{bad}");
    }
    for bad in ["", "127.0.0.1", "24276", ":24276", "example.org:80", "localhost:99999", "127.0.0.1:x"] {
        assert!(matches!(mcp(bad), Err(Invalid::Address(_))), "{bad}");
    }
}

#[test]
fn the_mesh_listens_on_addresses_of_this_machine_only() {
    for good in ["0.0.0.0:24274", "[::]:0", "192.168.1.2:1", "[fe80::1%2]:65535", " 127.0.0.1:0 "] {
        assert!(listen(good).is_ok(), "{good}");
    }
    for bad in
        ["", "24274", ":24274", "localhost:1", "::1:80", "1.2.3.4", "224.0.0.1:1", "[ff02::fb]:1", "1.2.3.4:65536"]
    {
        assert!(matches!(listen(bad), Err(Invalid::Listen(_))), "{bad}");
    }
    assert!(matches!(listen("255.255.255.255:1"), Err(Invalid::Listen(_))));
}

#[test]
fn a_place_to_dial_is_a_name_or_an_address_with_a_port() {
    for good in ["laptop:1", "a-b.example.org:24274", "a_b.:65535", "10.0.0.1:2", "[2001:db8::7]:3", "[fe80::1%3]:4"] {
        assert_eq!(connect(good).as_deref(), Ok(good));
    }
    assert_eq!(connect(" laptop:1\n").as_deref(), Ok("laptop:1"));
    let bad = [
        "",
        ":1",
        "laptop",
        "laptop:",
        "laptop:0",
        "laptop:65536",
        "laptop:+1",
        "laptop: 1",
        "quic://laptop:1",
        "a b:1",
        "-a:1",
        "a-:1",
        "a..b:1",
        "2001:db8::7:3",
        "[::]:1",
        "0.0.0.0:1",
        "10.0.0:1",
        "300.1.1.1:1",
        "[ff02::1]:1",
        "10.0.0.1:0",
        "ü:1",
        "[laptop]:1",
    ];
    for bad in bad {
        assert!(matches!(connect(bad), Err(Invalid::Connect(_))), "{bad}");
    }
    assert!(connect(&format!("{}:1", "a.".repeat(128))).is_err(), "longer than a name can be");
    assert!(connect(&"x".repeat(1 << 20)).unwrap_err().to_string().len() < 1_000);
    let many = (0..65).map(|number| format!("h{number}:1")).collect::<Vec<_>>().join(",");
    let error = Layer::from_variables(&variables(&[("CHAPPIE_CONNECT", &many)])).unwrap_err().to_string();
    assert!(error.contains("CHAPPIE_CONNECT") && error.contains("64"), "{error}");
}

#[test]
fn places_to_dial_replace_those_below_and_multicast_can_be_turned_on_again() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("config.toml"), "connect = ['file:1']\nmdns = false\nlisten = '[::]:5'").unwrap();
    let env = environment(&[("CHAPPIE_CONNECT", "env:1"), ("CHAPPIE_NO_MDNS", "0")]);
    let config = load(Layer::default(), home.path().to_owned(), &env).unwrap();
    assert_eq!((config.connect, config.mdns), (vec!["env:1".to_owned()], true));
    assert_eq!(config.listen.map(|address| address.port()), Some(5));
    let flags = Layer { connect: Some(vec!["flag:1".into()]), mdns: Some(false), ..Layer::default() };
    let config = load(flags, home.path().to_owned(), &env).unwrap();
    assert_eq!((config.connect, config.mdns), (vec!["flag:1".to_owned()], false));
}

#[test]
fn an_invite_code_is_never_shown_whatever_is_wrong_with_it() {
    let secret = code();
    let tail = &secret[secret.len() - 12..];
    let shows = |text: &str| text.to_ascii_lowercase().contains(tail);
    let joining: JoinCode = format!(" {secret}\n").parse().unwrap();
    assert_eq!(String::from(joining.clone()), secret);
    let config = Layer { join: Some(joining), ..Layer::default() }.complete("/h".into(), "box");
    assert!(!shows(&format!("{config:?}")), "{config:?}");
    for broken in [format!("{secret}{secret}"), format!("{secret}!"), format!("x{secret}"), secret[..99].to_owned()] {
        let error = broken.parse::<JoinCode>().unwrap_err();
        assert!(!shows(&format!("{error} {error:?}")), "{error:?}");
        let error = Layer::from_variables(&variables(&[("CHAPPIE_JOIN", &broken)])).unwrap_err();
        assert!(error.to_string().contains("CHAPPIE_JOIN") && !shows(&error.to_string()), "{error}");
    }
    let broken = [
        format!("name = 'n'\njoin = '{secret}"),
        format!("name = 'n'\njoin = {secret}"),
        format!("name = 'n'\njoin = ['{secret}']"),
        format!("name = 'n'\njoin = '{secret}' x"),
        format!("name = 'n'\njoin = '{secret}'\njoin = '{secret}'"),
        format!("name = 'n'\njoin = '{secret}{secret}'"),
    ];
    for text in broken {
        let error = from_toml(&text).unwrap_err();
        assert!(!shows(&format!("{error} {error:?}")), "{error}");
        assert!(error.to_string().contains("/h/config.toml"), "{error}");
        assert!(matches!(&error, ConfigError::Value { .. }) || error.to_string().contains("line "), "{error}");
    }
}

#[test]
fn the_last_equals_sign_names_a_session_unless_a_slash_follows() {
    let parsed = |text: &str| session(OsStr::new(text));
    assert_eq!(parsed("/a"), Ok(spec("/a", None)));
    assert_eq!(parsed("/a=web"), Ok(spec("/a", Some("web"))));
    assert_eq!(parsed("/a=b=web"), Ok(spec("/a=b", Some("web"))));
    assert_eq!(parsed("/a=b/"), Ok(spec("/a=b/", None)));
    assert_eq!(parsed("/a=b/c"), Ok(spec("/a=b/c", None)));
    for bad in ["", "=x", "/a=", "/a=\n"] {
        assert!(parsed(bad).is_err(), "{bad:?}");
    }
    let bytes = OsStr::from_bytes(b"/\xff=n");
    assert_eq!(session(bytes).unwrap().dir.as_os_str().as_bytes(), b"/\xff", "a folder need not be UTF-8");
}

#[test]
fn numbers_and_names_are_bounded() {
    assert_eq!(cooldown("0"), Ok(Duration::ZERO));
    assert_eq!(cooldown("0.25"), Ok(Duration::from_millis(250)));
    assert_eq!(call_budget("55"), Ok(Duration::from_secs(55)));
    for bad in ["-0.1", "86401", "1e300", "NaN"] {
        assert!(matches!(cooldown(bad), Err(Invalid::Range { .. })), "{bad}");
    }
    assert!(matches!(call_budget("soon"), Err(Invalid::Seconds(_))));
    assert!(call_budget("55.01").is_err() && call_budget("0.99").is_err());
    assert_eq!(name(" my box "), Ok("my box".into()));
    assert!(name(&"é".repeat(64)).is_ok());
    assert_eq!(device_name(" my box "), Ok("my box".into()));
    assert!(device_name(&"é".repeat(64)).is_ok());
    for bad in ["\u{202e}xob", &"\u{1f5a5}".repeat(64)] {
        assert!(matches!(device_name(bad), Err(Invalid::DeviceName(_))), "{bad}");
        assert_eq!(Layer::default().complete("/h".into(), bad).name, "device");
    }
    for bad in ["", "  ", "a\nb", "\u{1b}[2J", &"x".repeat(65), &"y".repeat(1 << 20)] {
        assert!(name(bad).unwrap_err().to_string().len() < 1_000);
    }
}

#[test]
fn the_home_comes_from_the_flag_then_the_variable_then_the_usual_places() {
    let all = [("CHAPPIE_HOME", "rel"), ("XDG_STATE_HOME", "/state"), ("HOME", "/u")];
    let home = |pairs: &[(&str, &str)], flag: Option<&str>| environment(pairs).home(flag.map(Path::new));
    assert_eq!(home(&all, Some("/flag")), Ok(PathBuf::from("/flag")));
    assert_eq!(home(&all, None), Ok(PathBuf::from("/cwd/rel")));
    assert_eq!(home(&all[1..], None), Ok(PathBuf::from("/state/chappie")));
    assert_eq!(home(&all[2..], None), Ok(PathBuf::from("/u/.local/state/chappie")));
    let relative = [("XDG_STATE_HOME", "state"), ("HOME", "/u")];
    assert_eq!(home(&relative, None), Ok(PathBuf::from("/u/.local/state/chappie")));
    assert_eq!(home(&[], None), Err(ConfigError::NoHome));
}

#[test]
fn a_settings_file_that_is_no_file_or_not_text_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("config.toml");
    let read = || load(Layer::default(), home.path().to_owned(), &environment(&[]));
    fs::create_dir(&path).unwrap();
    assert!(matches!(read(), Err(ConfigError::Read { .. })));
    fs::remove_dir(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(matches!(read(), Err(ConfigError::Read { .. })), "a pipe does not hang it");
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"\xff\xfe").unwrap();
    assert!(matches!(read(), Err(ConfigError::Read { .. })));
    fs::write(&path, "#".repeat(2 << 20)).unwrap();
    assert!(matches!(read(), Err(ConfigError::Read { .. })));
}

#[test]
fn a_machine_without_a_usable_name_still_has_one() {
    assert_eq!(Layer::default().complete("/h".into(), "").name, "device");
}
