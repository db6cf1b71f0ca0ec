//! `chappie invite`: a code that lets another device into the mesh.

use std::io::{self, Write as _};

use super::{Context, Failure, node, print};
use crate::control::{InviteRow, membership};

/// How a time is written, in seconds.
const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3_600), ('d', 86_400)];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How many devices may use the code, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = membership::USES_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(membership::USES_MAX)))]
    uses: u32,
    /// How long the code is good, 10s to 7d
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = ttl)]
    ttl: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    // Only a node that runs can be joined: the code says where it is.
    let row = node::running(context).await?.invite(args.uses, args.ttl).await?;
    if args.json {
        return print::json(&row);
    }
    print::text(&format!("{}\n", row.code))?;
    // On standard error, so that a script gets the code alone; without the code, for that may end up in a log.
    let _ = write!(io::stderr(), "{}", print::harmless(&hint(&row, args.uses)));
    Ok(())
}

fn hint(row: &InviteRow, uses: u32) -> String {
    let times = match uses {
        1 => "once".to_owned(),
        _ => format!("by {uses} devices"),
    };
    format!(
        "on the other device run `chappie join CODE` with this code; it is good until {}, {times}, and whoever has it \
         can use it\n",
        row.expires_at
    )
}

/// Milliseconds of a number with a unit.
fn ttl(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{:?} is no time; write a number and s, m, h or d, like 10m", text.get(..32).unwrap_or(text));
    let unit = UNITS.into_iter().find(|(unit, _)| text.ends_with(*unit));
    let (unit, seconds) = unit.ok_or_else(wrong)?;
    let number = text.strip_suffix(unit).unwrap_or_default();
    // No sign, no space, no second unit; so many digits fit.
    if number.is_empty() || number.len() > 9 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let ms = number.parse::<u64>().map_err(|_| wrong())? * seconds * 1_000;
    if (membership::TTL_MIN_MS..=membership::TTL_MAX_MS).contains(&ms) {
        Ok(ms)
    } else {
        Err(format!("{text} is outside 10s to 7d"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_with_its_unit() {
        let times = [("90s", 90_000), ("10m", 600_000), ("2h", 7_200_000), ("7d", 604_800_000), ("0010s", 10_000)];
        for (text, ms) in times {
            assert_eq!(ttl(text), Ok(ms), "{text}");
        }
        for bad in
            ["", "10", "m", "10x", "1.5h", "-1m", "+1m", " 10m", "10m ", "1h30m", "10ms", "10mm", "１０m", "1e3s"]
        {
            assert!(ttl(bad).unwrap_err().contains("no time"), "{bad}");
        }
        for bad in ["9s", "0d", "8d", "999999999d"] {
            assert!(ttl(bad).unwrap_err().contains("10s to 7d"), "{bad}");
        }
        assert!(ttl(&"9".repeat(1 << 20)).unwrap_err().len() < 200);
        assert_eq!(ttl("10m"), Ok(membership::TTL_DEFAULT_MS), "what the help says is the default");
    }

    #[test]
    fn the_hint_says_what_to_do_and_until_when_and_never_the_code() {
        let row = InviteRow { code: "chappie-SECRET".into(), expires_at: "2026-01-01T00:10:00.000Z".into() };
        for (uses, words) in [(1, "once"), (20, "by 20 devices")] {
            let hint = hint(&row, uses);
            for part in ["chappie join CODE", "2026-01-01T00:10:00.000Z", words] {
                assert!(hint.contains(part), "{part} is not in: {hint}");
            }
            assert!(!hint.contains("SECRET"), "{hint}");
        }
    }
}
