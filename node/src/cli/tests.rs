//! What is taken and what is refused before anything runs.

use clap::CommandFactory as _;

use super::*;

fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("chappie").chain(words.iter().copied()))
}

#[test]
fn the_definition_of_the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_of_the_contract_is_there() {
    let lines = [
        "up",
        "up --name N --session D --session E=F --mcp 127.0.0.1:0 --json --cooldown 0 --call-budget 55 --log debug",
        "up --listen [::]:0 --connect laptop:24274 --connect [fe80::1%2]:1 --no-mdns",
        "mcp",
        "mcp --session D",
        "mcp --listen 0.0.0.0:0 --connect laptop:24274 --no-mdns",
        "invite",
        "invite --uses 20 --ttl 2h --json",
        "join CODE",
        "join - --json",
        "peers",
        "peers --json",
        "forget NODE",
        "forget NODE --yes --json",
        "reset-identity",
        "reset-identity --yes --json",
        "status --json",
        "sessions --json",
        "session new DIR --name N --host native --json",
        "session end ID",
        "attach",
        "attach ID",
        "say ID TEXT --image A --image B --json",
        "log ID -f --json",
        "log -n 200 --after E",
        "receipts",
        "receipts --json",
        "receipts list --json",
        "receipts show ID --json",
        "receipts resolve ID completed",
        "receipts resolve ID not-run",
        "import-state FILE --json",
        "doctor --json",
        "completions bash",
        "--home /h status",
        "status --home /h",
    ];
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(parse(&words).is_ok(), "{line}: {}", parse(&words).unwrap_err());
    }
}

#[test]
fn wrong_usage_is_code_two_and_help_is_code_zero() {
    let wrong = [
        "",
        "fly",
        "status --colour",
        "session new",
        "session new D --host pi",
        "session new D --name ",
        "say ID",
        "log -n 0",
        "up --mcp 0.0.0.0:0",
        "up --mcp nowhere",
        "up --call-budget 56",
        "up --cooldown -1",
        "up --session =x",
        "up --name ",
        "log -n 201",
        "up --listen laptop:1",
        "up --listen 24274",
        "up --connect laptop",
        "up --connect quic://laptop:1",
        "invite --uses 0",
        "invite --uses 1001",
        "invite --ttl 9s",
        "invite --ttl 8d",
        "invite --ttl 10",
        "invite NODE",
        "join",
        "join CODE more",
        "forget",
        "reset-identity NODE",
        "receipts resolve ID maybe",
        "completions tcsh",
    ];
    for line in wrong {
        let words: Vec<&str> = line.split(' ').filter(|word| !line.is_empty() || !word.is_empty()).collect();
        assert_eq!(parse(&words).unwrap_err().exit_code(), 2, "{line}");
    }
    assert_eq!(parse(&["--help"]).unwrap_err().exit_code(), 0);
    assert_eq!(parse(&["--version"]).unwrap_err().exit_code(), 0);
}

#[test]
fn a_completion_script_for_every_shell_names_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let Ok(Cli { command: Command::Completions(args), .. }) = parse(&["completions", shell]) else {
            panic!("{shell} is known");
        };
        let script = completions::script(&args);
        for word in ["import-state", "invite", "join", "peers", "forget", "reset-identity", "no-mdns", "connect", "ttl"]
        {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}
