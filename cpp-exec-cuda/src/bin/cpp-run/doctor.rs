//! `cpp-run doctor`: what is here, and what it is good for.

use cpp_exec_cuda::machine::Machine;
use cpp_exec_cuda::text::Text;
use cpp_exec_mock::model::{LlamaConfig, Survey, Weights};

use crate::args::DoctorArgs;
use crate::failure::{Failure, print};

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let machine = Machine::look_in(&args.cuda.cuda_lib_dir);
    print(&format!("cpp-run      {}\n{machine}\n", env!("CARGO_PKG_VERSION")))?;
    let why_no_cuda = cuda(args)?;
    print("--device cpu   can run here\n")?;
    match why_no_cuda {
        Some(why) => print(&format!("--device cuda  cannot run here: {why}\n"))?,
        None => print("--device cuda  can run here\n")?,
    }
    let Some(folder) = &args.model else { return Ok(()) };
    let config = LlamaConfig::read(folder)?;
    let weights = Weights::open(folder)?;
    tensors(&weights.survey(&config))?;
    let text = Text::read(folder, config.vocab_size)?;
    let total = weights.num_bytes();
    let kv = (2 * config.num_layers * config.kv_size() * 4) as u64;
    print(&format!(
        "\n{}\n{} layers, hidden {}, {} heads over {}, vocabulary {}\nweights {}, KV {} for each position\nprompts {}\n",
        folder.display(),
        config.num_layers,
        config.hidden_size,
        config.num_heads,
        config.num_kv_heads,
        config.vocab_size,
        bytes(total),
        bytes(kv),
        text.template().map_or_else(|| "are taken as they are".to_owned(), |template| format!("are put into the template {template:?}")),
    ))?;
    match machine.memory {
        0 => Ok(()),
        free if free >= total => {
            print(&format!("it fits: {} are left for KV, {} positions\n", bytes(free - total), (free - total) / kv.max(1)))
        }
        free => print(&format!("it does not fit: {} are free\n", bytes(free))),
    }
}

/// What can be loaded, not only found; why there is no CUDA.
#[cfg(all(feature = "cuda", unix))]
fn cuda(args: &DoctorArgs) -> Result<Option<String>, Failure> {
    let found = cpp_exec_cuda::cuda::Survey::look(&crate::device::folders(&args.cuda));
    print(&format!("{found}\n"))?;
    Ok(found.why_not())
}

#[cfg(not(all(feature = "cuda", unix)))]
fn cuda(_: &DoctorArgs) -> Result<Option<String>, Failure> {
    Ok(Some("this cpp-run was built without CUDA".to_owned()))
}

/// Every tensor that is wrong, and the rest in one line.
fn tensors(survey: &Survey) -> Result<(), Failure> {
    for problem in &survey.problems {
        print(&format!("wrong: {problem}\n"))?;
    }
    let formats: Vec<String> = survey.formats.iter().map(|(format, count)| format!("{count} of {format:?}")).collect();
    print(&format!("\n{} tensors are needed, there are {}", survey.needed, formats.join(", ")))?;
    match &survey.unused[..] {
        [] => print("\n")?,
        [first, ..] => print(&format!("; {} more are not needed, {first} among them\n", survey.unused.len()))?,
    }
    match &survey.problems[..] {
        [] => Ok(()),
        [only] => Err(Failure::Usage(only.to_string())),
        [first, rest @ ..] => Err(Failure::Usage(format!("{first}; and {} more", rest.len()))),
    }
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
